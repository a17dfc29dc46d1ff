"""Micro-batches: samples packed into one row of tokens, with what the loss needs of each trained token.

Shape suffixes: T tokens of this rank's part of the row, R of the whole row, N wanted tokens (those that are trained, or all
response tokens for plain logprobs), M those of them that this rank predicts: all, unless context parallelism shares them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from vime.trainer.packed_sequences import PackedSequences, packed_sequences, zigzag
from vime.trainer.shard import PackedRow, RowShare, Shard
from vime.types import TrainSample


@dataclass(kw_only=True, slots=True)
class Wanted:
    """Which tokens a row is to give logprobs of, and where this rank's part predicts them.

    Example: one sample `tokens=[1, 5, 9, 2], loss_mask=[1, 1]` on one rank has predict_M = [1, 2] and target_M = [9, 2].
    """

    predict_M: torch.Tensor
    """Places in this rank's part of the row; a token is predicted one place before its own."""
    target_M: torch.Tensor
    place_M: torch.Tensor | None
    """Position among the N wanted tokens; None where M is N."""
    count: int
    """N."""


@dataclass(kw_only=True, slots=True)
class MicroBatch:
    """Samples in one packed row, of which this rank holds a part. Everything of shape N is the same on all of its ranks.

    Example: one sample `tokens=[1, 5, 9, 2], loss_mask=[1, 1]` has T = 4 and N = 2.
    """

    sample_indices: list[int]
    """Positions in the update's list of samples, in the order of the row."""
    token_counts: list[int]
    """Wanted tokens of each sample."""
    tokens_T: torch.Tensor
    packed: PackedSequences
    wanted: Wanted
    advantage_N: torch.Tensor
    weight_N: torch.Tensor
    rollout_logprob_N: torch.Tensor
    staleness_N: torch.Tensor
    """Weight versions between sampling and training."""
    sequence_N: torch.Tensor
    """Number of the sequence that a token belongs to, from 0 without gaps; sequences without wanted tokens have none."""


class MicroBatches:
    """The micro-batches of a shard: each is built, on the device, whenever it is asked for, and nothing keeps it.

    So no more of them are on the device than the schedule works on.
    """

    def __init__(self, shard: Shard, *, only_trained: bool, device: torch.device | str, share: RowShare | None = None) -> None:
        """`only_trained` wants the tokens whose loss mask is 1, otherwise all response tokens are wanted."""
        self._rows, self._only_trained, self._device, self._share = shard.rows(), only_trained, device, share or RowShare()
        self.useful_token_share = shard.useful_token_share
        self._advantages: list[torch.Tensor] | None = None

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[MicroBatch]:
        for number in range(len(self._rows)):
            yield self._built(number)

    def layout(self) -> Iterator[tuple[list[int], list[int]]]:
        """Of each micro-batch the samples' places in the update, and how many tokens are wanted of each."""
        for row in self._rows:
            yield row.indices, [int(_mask(sample, self._only_trained).sum()) for sample in row.samples]

    @property
    def longest(self) -> int:
        """T of the micro-batch with most tokens."""
        return max(sum(self._share.fill(_lengths(row))) // self._share.context_size for row in self._rows)

    def set_advantages(self, advantages: list[torch.Tensor]) -> None:
        """Replaces `advantage_N` of all micro-batches."""
        self._advantages = advantages

    def _built(self, number: int) -> MicroBatch:
        batch = _build(self._rows[number], self._only_trained, self._share, self._device)
        if self._advantages is not None:
            batch.advantage_N = self._advantages[number]
        return batch


def _build(row: PackedRow, only_trained: bool, share: RowShare, device: torch.device | str) -> MicroBatch:
    """Builds the micro-batch of a row; a row without samples becomes one token without loss."""
    chosen, lengths = row.samples, _lengths(row)
    masks = [_mask(sample, only_trained) for sample in chosen]
    counts = [int(mask.sum()) for mask in masks]
    padded = share.fill(lengths)
    starts = np.cumsum(padded) - padded
    tokens_R = np.zeros(sum(padded), dtype=np.int64)
    for start, sample in zip(starts, chosen):
        tokens_R[start : start + len(sample.tokens)] = sample.tokens
    nothing: list[np.ndarray] = [np.zeros(0, np.int64)]
    ends = [start + length for start, length in zip(starts, lengths)]
    places = np.concatenate(nothing + [end - len(mask) + np.flatnonzero(mask) for end, mask in zip(ends, masks)])
    logprobs = [np.asarray(sample.rollout_log_probs)[mask] for sample, mask in zip(chosen, masks)]
    staleness = [sample.version - np.asarray(sample.weight_versions, np.int64)[mask] for sample, mask in zip(chosen, masks)]
    repeats = np.asarray(counts, dtype=np.int64)
    tokens_T, wanted = _part(torch.from_numpy(tokens_R), torch.from_numpy(places), padded, share, device)
    return MicroBatch(
        sample_indices=row.indices,
        token_counts=counts,
        tokens_T=tokens_T,
        packed=packed_sequences(padded, context_rank=share.context_rank, context_size=share.context_size, device=device),
        wanted=wanted,
        advantage_N=_repeat([sample.advantage for sample in chosen], repeats, device),
        weight_N=_repeat([sample.token_weight for sample in chosen], repeats, device),
        rollout_logprob_N=torch.from_numpy(np.concatenate([np.zeros(0, np.float32), *logprobs])).to(device),
        staleness_N=torch.from_numpy(np.concatenate(nothing + staleness)).to(device),
        sequence_N=torch.from_numpy(np.repeat(np.cumsum(repeats > 0) - 1, repeats)).to(device),
    )


def _part(
    tokens_R: torch.Tensor, places_N: torch.Tensor, lengths: list[int], share: RowShare, device: torch.device | str
) -> tuple[torch.Tensor, Wanted]:
    """This rank's tokens of a row, and which of the tokens at `places_N` they predict."""
    targets_N = tokens_R[places_N]
    if share.context_size == 1:
        wanted = Wanted(predict_M=(places_N - 1).to(device), target_M=targets_N.to(device), place_M=None, count=places_N.numel())
        return tokens_R.to(device), wanted
    own_T = zigzag(lengths, share.context_rank, share.context_size)
    position_R = torch.full_like(tokens_R, -1)
    position_R[own_T] = torch.arange(own_T.numel())
    predict_N = position_R[places_N - 1]
    place_M = torch.nonzero(predict_N >= 0).flatten()
    wanted = Wanted(
        predict_M=predict_N[place_M].to(device),
        target_M=targets_N[place_M].to(device),
        place_M=place_M.to(device),
        count=places_N.numel(),
    )
    return tokens_R[own_T].to(device), wanted


def _mask(sample: TrainSample, only_trained: bool) -> np.ndarray:
    """Wanted response tokens. The first token of a sequence is never predicted."""
    mask = np.asarray(sample.loss_mask, dtype=bool) if only_trained else np.ones(len(sample.loss_mask), dtype=bool)
    if len(mask) == len(sample.tokens):
        mask = mask.copy()
        mask[0] = False
    return mask


def _lengths(row: PackedRow) -> list[int]:
    return [len(sample.tokens) for sample in row.samples] or [1]


def _repeat(values: list[float], counts: np.ndarray, device: torch.device | str) -> torch.Tensor:
    return torch.from_numpy(np.repeat(np.asarray(values, dtype=np.float32), counts)).to(device)
