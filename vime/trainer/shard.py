"""Shards: the samples of an update that one data-parallel rank trains on, packed once and stored end to end in few arrays.

A shard crosses to the trainer through Ray's object store, from which every rank with the same data reads it without a copy. The
number of its arrays must not grow with the samples', since each costs as much as a hundred kilobytes; and it is joined block by
block, so that the driver never holds the tokens of a large update twice.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vime.cluster.layout import splits_tokens
from vime.config import AlgorithmName, RunConfig, TrainerConfig
from vime.errors import SampleError
from vime.trainer.packing import Packing, pack, sequence_flops, useful_share
from vime.types import Integers, Reals, TrainSample
from vime.types.column import Column

BLOCK_TOKENS = 2**22
"""A block ends with the row that reaches so many tokens: 13 bytes of each are joined at once."""


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

    @classmethod
    def of(cls, trainer: TrainerConfig, *, context_rank: int = 0) -> "RowShare":
        """The row share of a rank with this context-parallel rank; the padding is the same on all ranks."""
        return cls(
            context_rank=context_rank,
            context_size=trainer.context_parallel_size,
            tensor_size=trainer.tensor_parallel_size if splits_tokens(trainer) else 1,
            count_multiple=trainer.pipeline_parallel_size if trainer.virtual_pipeline_parallel_size > 1 else 1,
        )

    def padded(self, length: int) -> int:
        """Places that a sequence takes in a row."""
        multiple = 2 * self.context_size if self.context_size > 1 else 1
        return -(-length // multiple) * multiple

    def fill(self, lengths: list[int]) -> list[int]:
        """Places that the sequences of a row take; the last one includes the filling of the row."""
        padded = [self.padded(length) for length in lengths]
        row_multiple = math.lcm(self.padded(1), self.context_size * self.tensor_size)
        padded[-1] += -sum(padded) % row_multiple
        return padded


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedRow:
    """The samples of one micro-batch, the longest first, and their positions in the update. Without samples it is empty."""

    indices: list[int]
    samples: list[TrainSample]


@dataclass(kw_only=True, slots=True)
class Block:
    """Rows of a shard with their tokens in few arrays.

    Example: two rows, of samples 2 and 0 of the update and of sample 1, have `indices=[2, 0, 1], row_sizes=[2, 1]`. A row may
    be empty, since all ranks have equally many.
    """

    tokens: np.ndarray
    """Of all samples of all rows, one after another."""
    loss_mask: np.ndarray
    """Of their response tokens, as are the next two."""
    rollout_log_probs: np.ndarray
    weight_versions: np.ndarray
    num_tokens: np.ndarray
    """Of each sample, as are the next five."""
    num_response_tokens: np.ndarray
    advantages: np.ndarray
    token_weights: np.ndarray
    versions: np.ndarray
    indices: np.ndarray
    row_sizes: list[int]

    def rows(self) -> list[PackedRow]:
        """Views of the arrays, sample by sample."""
        ends, response_ends = np.cumsum(self.num_tokens), np.cumsum(self.num_response_tokens)
        samples = [
            self._sample(number, int(end - self.num_tokens[number]), int(end), int(response_end))
            for number, (end, response_end) in enumerate(zip(ends, response_ends))
        ]
        starts = np.cumsum([0, *self.row_sizes])
        return [
            PackedRow(indices=self.indices[start : start + size].tolist(), samples=samples[start : start + size])
            for start, size in zip(starts, self.row_sizes)
        ]

    def _sample(self, number: int, start: int, end: int, response_end: int) -> TrainSample:
        response = slice(response_end - int(self.num_response_tokens[number]), response_end)
        return TrainSample(
            tokens=Column(self.tokens[start:end], self.tokens.dtype),
            loss_mask=Column(self.loss_mask[response], self.loss_mask.dtype),
            rollout_log_probs=Column(self.rollout_log_probs[response], self.rollout_log_probs.dtype),
            weight_versions=Column(self.weight_versions[response], self.weight_versions.dtype),
            advantage=float(self.advantages[number]),
            token_weight=float(self.token_weights[number]),
            version=int(self.versions[number]),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """The rows of one data-parallel rank in one update, as blocks or as references to blocks in Ray's store."""

    blocks: list[Any]
    useful_token_share: float
    """Share of places in all ranks' rows that hold a token."""
    update_samples: int
    """Samples of the update, on all ranks."""
    update_tokens: int
    """Tokens of the update, on all ranks."""

    def fetched(self, fetch: Callable[[list[Any]], list[Block]]) -> "Shard":
        """This shard with its blocks, which `fetch` returns for the references."""
        return replace(self, blocks=fetch(self.blocks))

    def rows(self) -> list[PackedRow]:
        """The rows of all blocks."""
        return [row for block in self.blocks for row in block.rows()]


class PackedUpdate:
    """The samples of one optimizer step with their packing, from which each data-parallel rank's shard is made."""

    def __init__(self, config: RunConfig, samples: list[TrainSample], *, with_logprobs: bool = True) -> None:
        """Raises `SampleError` if a sample has not one logprob for each response token, except of demonstrations."""
        if with_logprobs and config.algorithm.name is not AlgorithmName.sft:
            _check_logprobs(samples)
        self._samples = samples
        share, lengths = RowShare.of(config.trainer), [len(sample.tokens) for sample in samples]
        self._packing: Packing = pack(
            [share.padded(length) for length in lengths],
            max_tokens=config.trainer.max_tokens_per_micro_batch * share.context_size,
            num_ranks=config.trainer.data_parallel_size,
            work=lambda length: sequence_flops(config.model, length),
            count_multiple=share.count_multiple,
        )
        self._num_tokens = sum(lengths)
        rows = [[sum(share.fill([lengths[index] for index in row] or [1])) for row in rank] for rank in self._packing]
        self._useful_token_share = useful_share(rows, self._num_tokens)

    def shard(self, data_rank: int, keep: Callable[[Block], Any] = lambda block: block) -> Shard:
        """The shard of one rank. It runs in lockstep with the others: where its row is shorter than the longest, it waits.

        `keep` takes each block as soon as it is joined and returns a reference for the shard to hold instead; `ray.put` is one.
        """
        return Shard(
            blocks=[keep(self._block(rows)) for rows in self._blocks(data_rank)],
            useful_token_share=self._useful_token_share,
            update_samples=len(self._samples),
            update_tokens=self._num_tokens,
        )

    def _blocks(self, data_rank: int) -> Iterator[list[list[int]]]:
        """The rank's rows of sample indices, parted where the tokens before a row reach a multiple of a block's."""
        rows = [sorted(row, key=self._length, reverse=True) for row in self._packing[data_rank]]
        before = itertools.accumulate((sum(map(self._length, row)) for row in rows), initial=0)
        for _, pairs in itertools.groupby(zip(before, rows), key=lambda pair: pair[0] // BLOCK_TOKENS):
            yield [row for _, row in pairs]

    def _length(self, index: int) -> int:
        return len(self._samples[index].tokens)

    def _block(self, rows: list[list[int]]) -> Block:
        indices = [index for row in rows for index in row]
        chosen = [self._samples[index] for index in indices]
        return Block(
            tokens=_joined([sample.tokens for sample in chosen], np.int32),
            loss_mask=_joined([sample.loss_mask for sample in chosen], bool),
            rollout_log_probs=_joined([_filled(sample.rollout_log_probs, sample, 0.0) for sample in chosen], np.float32),
            weight_versions=_joined([_filled(sample.weight_versions, sample, sample.version) for sample in chosen], np.int32),
            num_tokens=np.array([len(sample.tokens) for sample in chosen], dtype=np.int64),
            num_response_tokens=np.array([sample.response_length for sample in chosen], dtype=np.int64),
            advantages=np.array([sample.advantage for sample in chosen], dtype=np.float64),
            token_weights=np.array([sample.token_weight for sample in chosen], dtype=np.float64),
            versions=np.array([sample.version for sample in chosen], dtype=np.int64),
            indices=np.array(indices, dtype=np.int64),
            row_sizes=[len(row) for row in rows],
        )


def _joined(parts: list[Any], dtype: type) -> np.ndarray:
    return np.concatenate([np.zeros(0, dtype), *(np.asarray(part, dtype=dtype) for part in parts)])


def _filled(values: Integers | Reals, sample: TrainSample, value: float) -> Any:
    """What a sample that has none gets in their place."""
    return values if len(values) else np.full(sample.response_length, value)


def _check_logprobs(samples: list[TrainSample]) -> None:
    for position, sample in enumerate(samples):
        if len(sample.rollout_log_probs) != sample.response_length:
            raise SampleError(
                f"sample {position} of an update has {len(sample.rollout_log_probs)} logprobs for "
                f"{sample.response_length} response tokens"
            )
