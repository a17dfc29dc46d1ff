"""Micro-batches: samples packed into one row of tokens, with what the loss needs of each trained token.

Shape suffixes: T tokens of the row, N wanted tokens (those that are trained, or all response tokens for plain logprobs).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from vime.data.packing import pack
from vime.trainer.attention import PackedSequences, packed_sequences
from vime.types import TrainSample


@dataclass(kw_only=True, slots=True)
class MicroBatch:
    """Samples in one packed row.

    Example: one sample `tokens=[1, 5, 9, 2], loss_mask=[1, 1]` has T = 4, N = 2, predict_N = [1, 2] and target_N = [9, 2].
    """

    sample_indices: list[int]
    """Positions in the list of samples, in the order of the row."""
    token_counts: list[int]
    """Wanted tokens of each sample."""
    tokens_T: torch.Tensor
    packed: PackedSequences
    predict_N: torch.Tensor
    target_N: torch.Tensor
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
) -> Batch:
    """Packs all samples and builds this rank's micro-batches; every rank computes the same packing.

    `only_trained` wants the tokens whose loss mask is 1, otherwise all response tokens are wanted. Ranks run in lockstep, so
    a rank whose row is shorter than the longest of the same number waits: that share is not useful.
    """
    lengths = [len(sample.tokens) for sample in samples]
    packing = pack(lengths, max_tokens=max_tokens, num_ranks=data_size, work=work)
    rows = [[sum(lengths[index] for index in row) for row in rank] for rank in packing]
    places = data_size * sum(max(column) for column in zip(*rows))
    micro_batches = [_build(samples, row, only_trained, device) for row in packing[data_rank]]
    return Batch(micro_batches=micro_batches, useful_token_share=sum(lengths) / places if places else 1.0)


def _build(samples: list[TrainSample], indices: list[int], only_trained: bool, device: torch.device | str) -> MicroBatch:
    """Longest first, so that neighbours have similar lengths; a row without samples is one token that nothing is wanted of."""
    indices = sorted(indices, key=lambda index: -len(samples[index].tokens))
    chosen = [samples[index] for index in indices]
    lengths = [len(sample.tokens) for sample in chosen] or [1]
    masks = [_mask(sample, only_trained) for sample in chosen]
    counts = [int(mask.sum()) for mask in masks]
    tokens = np.concatenate([np.asarray(sample.tokens, dtype=np.int64) for sample in chosen] or [np.zeros(1, np.int64)])
    ends = np.cumsum(lengths)
    nothing: list[np.ndarray] = [np.zeros(0, np.int64)]
    targets = np.concatenate(nothing + [end - len(m) + np.flatnonzero(m) for end, m in zip(ends, masks)])
    logprobs = [_logprobs(sample)[mask] for sample, mask in zip(chosen, masks)]
    staleness = [_staleness(sample)[mask] for sample, mask in zip(chosen, masks)]
    repeats = np.asarray(counts, dtype=np.int64)
    tokens_T = torch.from_numpy(tokens)
    target_N = torch.from_numpy(targets)
    return MicroBatch(
        sample_indices=indices,
        token_counts=counts,
        tokens_T=tokens_T.to(device),
        packed=packed_sequences(lengths, device=device),
        predict_N=(target_N - 1).to(device),
        target_N=tokens_T[target_N].to(device),
        advantage_N=_repeat([sample.advantage for sample in chosen], repeats, device),
        weight_N=_repeat([sample.token_weight for sample in chosen], repeats, device),
        rollout_logprob_N=torch.from_numpy(np.concatenate([np.zeros(0, np.float32), *logprobs])).to(device),
        staleness_N=torch.from_numpy(np.concatenate(nothing + staleness)).to(device),
        sequence_N=torch.from_numpy(np.repeat(np.cumsum(repeats > 0) - 1, repeats)).to(device),
    )


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
