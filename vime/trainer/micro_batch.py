"""Micro-batches: samples packed into one row of tokens, with what the loss needs of each trained token.

Shape suffixes: T tokens of this rank's part of the row, R of the whole row, N wanted tokens (those that are trained, or all
response tokens for plain logprobs), M those of them that this rank predicts: all, unless context parallelism shares them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from vime.data.packing import pack, useful_share
from vime.trainer.packed_sequences import PackedSequences, packed_sequences, zigzag
from vime.types import TrainSample


@dataclass(frozen=True, kw_only=True, slots=True)
class RowShare:
    """How rows are shared: each sequence over context-parallel ranks, the rest over tensor ranks if they split by tokens.

    Example: `RowShare(context_rank=1, context_size=2, tensor_size=4)` pads sequences to a multiple of 4 and rows to one of 8.
    """

    context_rank: int = 0
    context_size: int = 1
    tensor_size: int = 1
    """With sequence parallelism the tensor-parallel size, otherwise 1."""
    count_multiple: int = 1
    """The number of micro-batches is a multiple of this."""

    def padded(self, length: int) -> int:
        """Places that a sequence takes in a row."""
        multiple = 2 * self.context_size if self.context_size > 1 else 1
        return -(-length // multiple) * multiple

    def fill(self, lengths: list[int]) -> list[int]:
        """Places of the sequences of a row; the last one is followed by what fills up the row."""
        padded = [self.padded(length) for length in lengths]
        row_multiple = math.lcm(self.padded(1), self.context_size * self.tensor_size)
        padded[-1] += -sum(padded) % row_multiple
        return padded


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
    """Positions in the list of samples, in the order of the row."""
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


@dataclass(kw_only=True, slots=True)
class Batch:
    """The micro-batches of one data-parallel rank, and the share of places in all ranks' rows that hold a token."""

    micro_batches: list[MicroBatch]
    useful_token_share: float


def build_batch(
    samples: list[TrainSample],
    *,
    max_tokens: int,
    data_rank: int,
    data_size: int,
    work: Callable[[int], float],
    only_trained: bool,
    device: torch.device | str,
    share: RowShare = RowShare(),
) -> Batch:
    """Packs all samples and builds this rank's micro-batches; every rank computes the same packing.

    `only_trained` wants the tokens whose loss mask is 1, otherwise all response tokens are wanted. Ranks run in lockstep, so
    a rank whose row is shorter than the longest of the same number waits: that share is not useful.
    """
    lengths = [len(sample.tokens) for sample in samples]
    packing = pack(
        [share.padded(length) for length in lengths],
        max_tokens=max_tokens * share.context_size,
        num_ranks=data_size,
        work=work,
        count_multiple=share.count_multiple,
    )
    rows = [[sum(share.fill([lengths[index] for index in row] or [1])) for row in rank] for rank in packing]
    micro_batches = [_build(samples, row, only_trained, share, device) for row in packing[data_rank]]
    return Batch(micro_batches=micro_batches, useful_token_share=useful_share(rows, sum(lengths)))


def _build(
    samples: list[TrainSample], indices: list[int], only_trained: bool, share: RowShare, device: torch.device | str
) -> MicroBatch:
    """Longest first, so that neighbours have similar lengths; a row without samples is one token that nothing is wanted of."""
    indices = sorted(indices, key=lambda index: -len(samples[index].tokens))
    chosen = [samples[index] for index in indices]
    lengths = [len(sample.tokens) for sample in chosen] or [1]
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
    logprobs = [_logprobs(sample)[mask] for sample, mask in zip(chosen, masks)]
    staleness = [_staleness(sample)[mask] for sample, mask in zip(chosen, masks)]
    repeats = np.asarray(counts, dtype=np.int64)
    tokens_T, wanted = _part(torch.from_numpy(tokens_R), torch.from_numpy(places), padded, share, device)
    return MicroBatch(
        sample_indices=indices,
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


def _logprobs(sample: TrainSample) -> np.ndarray:
    """Demonstrations carry none: zeros then."""
    if not sample.rollout_log_probs:
        return np.zeros(sample.response_length, dtype=np.float32)
    return np.asarray(sample.rollout_log_probs, dtype=np.float32)


def _staleness(sample: TrainSample) -> np.ndarray:
    return np.asarray(sample.staleness or [0] * sample.response_length, dtype=np.int64)


def _repeat(values: list[float], counts: np.ndarray, device: torch.device | str) -> torch.Tensor:
    return torch.from_numpy(np.repeat(np.asarray(values, dtype=np.float32), counts)).to(device)
