"""Shards: the sequences of an update that one data-parallel rank trains on, packed once and stored end to end, column by column.

A shard crosses to the trainer through Ray's object store, from which every rank with the same data reads it without a copy. The
number of its arrays must not grow with the sequences, since each costs as much as a hundred kilobytes; and it is joined block by
block, so that the driver never holds the tokens of a large update twice.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vime.algorithm.algorithm import Algorithm
from vime.cluster.layout import splits_tokens
from vime.config import Fp8Recipe, ModelConfig, RoutingReplay, RunConfig, TrainerConfig
from vime.errors import SampleError
from vime.trainer.packing import Packing, pack, sequence_flops, useful_share
from vime.types import ColumnType, Defined, Sample
from vime.types.column import ADVANTAGE, LOGPROB, MASK, ROUTED_EXPERTS, TOKEN, VERSION, WEIGHT
from vime.types.routed_experts import id_type

BLOCK_TOKENS = 2**22
"""Number of tokens at which a block ends, with the row that reaches it; at most 13 bytes of each token are joined at once."""
FP8_TOKENS = 16
"""Tokens of a product of 8-bit floats come in multiples of this."""
NUMBERS = itertools.count()
COLUMNS = (TOKEN, MASK, LOGPROB, VERSION, ADVANTAGE, WEIGHT)
"""Columns of every shard."""


def experts_column(model: ModelConfig) -> ColumnType:
    """The column of the experts that servers report (`vime.trainer.routing_replay`)."""
    dtype = id_type(model.num_experts)
    shape = (model.num_layers, model.num_experts_per_token)
    return replace(ROUTED_EXPERTS, dtype=dtype, shape=shape)


@dataclass(frozen=True, kw_only=True, slots=True)
class RowShare:
    """The sharing of rows: each sequence over context-parallel ranks, the rest over tensor ranks if they split by tokens.

    Example: `RowShare(context_rank=1, context_size=2, tensor_size=4)` pads sequences to a multiple of 4 and rows to one of 8.
    """

    context_rank: int = 0
    context_size: int = 1
    tensor_size: int = 1
    """The tensor-parallel size with sequence parallelism, otherwise 1."""
    count_multiple: int = 1
    """The number of micro-batches is a multiple of this."""
    token_multiple: int = 1
    """The number of a rank's tokens in a row is a multiple of this."""

    @classmethod
    def of(cls, trainer: TrainerConfig, *, context_rank: int = 0) -> "RowShare":
        """The row share of a rank with this context-parallel rank; the padding is the same on all ranks."""
        return cls(
            context_rank=context_rank,
            context_size=trainer.context_parallel_size,
            tensor_size=trainer.tensor_parallel_size if splits_tokens(trainer) else 1,
            count_multiple=trainer.pipeline_parallel_size if trainer.virtual_pipeline_parallel_size > 1 else 1,
            token_multiple=1 if trainer.fp8.recipe is Fp8Recipe.none else FP8_TOKENS,
        )

    def padded(self, length: int) -> int:
        """Places that a sequence takes in a row."""
        multiple = 2 * self.context_size if self.context_size > 1 else 1
        return -(-length // multiple) * multiple

    def fill(self, lengths: list[int]) -> list[int]:
        """Places that the sequences of a row take; the last one includes the filling of the row."""
        padded = [self.padded(length) for length in lengths]
        row_multiple = math.lcm(self.padded(1), self.context_size * self.tensor_size * self.token_multiple)
        padded[-1] += -sum(padded) % row_multiple
        return padded


@dataclass(kw_only=True, slots=True)
class PackedRows:
    """Rows of sequences end to end, with their columns in few arrays; a micro-batch is made of one row.

    Example of two rows, of sequences 2 and 0 of the update and of sequence 1: `indices=[2, 0, 1], row_sizes=[2, 1]`. Example of
    one row with sequence 3, `tokens=[1, 5, 9, 2], loss_mask=[1, 0]`: `indices=[3], row_sizes=[1], num_tokens=[4],
    num_response_tokens=[2], columns={"token": [1, 5, 9, 2], "mask": [1, 0], …}, numbers={"advantage": [0.5], …}`. A row has its
    longest sequence first; it may be empty, since all ranks have the same number of rows.
    """

    row_sizes: list[int]
    """Sequences of each row."""
    indices: np.ndarray
    """Places of the sequences in the update."""
    num_tokens: np.ndarray
    num_response_tokens: np.ndarray
    columns: dict[str, np.ndarray]
    """Entries for each place at which the column is defined, of all sequences."""
    numbers: dict[str, np.ndarray]
    """Columns with one number for all places of a sequence: one entry for each sequence."""
    types: dict[str, ColumnType]

    @property
    def trained(self) -> np.ndarray:
        """True for the response tokens that are trained; see `Defined.sampled`."""
        return without_first(self.columns["mask"], self.num_tokens, self.num_response_tokens)

    def with_columns(self, columns: dict[str, np.ndarray]) -> "PackedRows":
        """A copy of the rows with columns of their trained tokens that the trainer computed."""
        types = {name: ColumnType(name=name) for name in columns}
        return replace(self, columns=self.columns | columns, types=self.types | types)

    def rows(self) -> "list[PackedRows]":
        """Views of the arrays, row by row."""
        counts = {
            Defined.everywhere: self.num_tokens,
            Defined.response: self.num_response_tokens,
            Defined.sampled: sums(self.trained, self.num_response_tokens),
            Defined.sequence: np.ones(len(self.indices), np.int64),
        }
        before = {defined: np.concatenate([[0], np.cumsum(each)]) for defined, each in counts.items()}
        ends = np.cumsum(self.row_sizes).tolist()
        return [self._row(end - size, end, before) for end, size in zip(ends, self.row_sizes)]

    def _row(self, start: int, end: int, before: dict[Defined, np.ndarray]) -> "PackedRows":
        parts = {name: before[self.types[name].defined] for name in self.columns}
        return PackedRows(
            row_sizes=[end - start],
            indices=self.indices[start:end],
            num_tokens=self.num_tokens[start:end],
            num_response_tokens=self.num_response_tokens[start:end],
            columns={name: self.columns[name][part[start] : part[end]] for name, part in parts.items()},
            numbers={name: values[start:end] for name, values in self.numbers.items()},
            types=self.types,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """The rows of one data-parallel rank in one update, as blocks or as references to blocks in Ray's store."""

    blocks: list[Any]
    known: tuple[list[Any], ...] = ()
    """Columns that the trainer computed, one dictionary (or reference) for each block, from each of its forward passes."""
    version: int
    """Version of the weights in training."""
    number: int = 0
    """Number of the update among those that this process has packed."""
    useful_token_share: float
    """Share of places in all ranks' rows that hold a token."""
    update_samples: int
    """Sequences of the update, on all ranks."""
    update_tokens: int
    """Tokens of the update, on all ranks."""

    def with_known(self, columns: list[Any] | None) -> "Shard":
        """This shard with the columns that a forward pass returned; `columns` is None on a rank that knows none of them."""
        return self if columns is None else replace(self, known=(*self.known, columns))

    def fetched(self, fetch: Callable[[list[Any]], list[Any]]) -> "Shard":
        """This shard with its blocks and columns, which `fetch` returns for the references."""
        return replace(self, blocks=fetch(self.blocks), known=tuple(fetch(columns) for columns in self.known))

    def rows(self) -> list[PackedRows]:
        """The rows of all blocks, one by one, with all columns."""
        blocks = self.blocks
        for known in self.known:
            blocks = [block.with_columns(columns) for block, columns in zip(blocks, known, strict=True)]
        return [row for block in blocks for row in block.rows()]


class PackedUpdate:
    """The sequences of one optimizer step with their packing, from which each data-parallel rank's shard is made."""

    def __init__(
        self,
        config: RunConfig,
        samples: Sequence[Sample],
        *,
        version: int = 0,
        columns: Sequence[ColumnType] = (),
        with_logprobs: bool = True,
    ) -> None:
        """`version` is the version of the weights in training; `columns` are those that an algorithm adds to `COLUMNS`.

        Raises `SampleError` if a sequence lacks an entry of a column; demonstrations need no logprobs (`with_logprobs=False`).
        """
        fills = {"version": version} if with_logprobs else {"version": version, "logprob": 0.0}
        types = [replace(kind, fill=fills.get(kind.name, kind.fill)) for kind in COLUMNS[2:]]
        self._types = [*COLUMNS[:2], *types, *columns]
        self._samples, self._version, self._number = samples, version, next(NUMBERS)
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

    @classmethod
    def of(
        cls,
        config: RunConfig,
        algorithm: Algorithm,
        samples: Sequence[Sample],
        *,
        version: int,
        has_advantages: bool = True,
    ) -> "PackedUpdate":
        """An update for an algorithm, with its columns unless they are still to come (`has_advantages=False`)."""
        columns = [*algorithm.columns, *(need.type for need in algorithm.needs_before)] if has_advantages else []
        if config.trainer.routing_replay is RoutingReplay.rollout:
            columns.append(experts_column(config.model))
        with_logprobs = not algorithm.is_supervised
        return cls(config, samples, version=version, columns=[*algorithm.recorded, *columns], with_logprobs=with_logprobs)

    def shard(self, data_rank: int, keep: Callable[[PackedRows], Any] = lambda block: block) -> Shard:
        """The shard of one rank. It runs in lockstep with the others: where its row is shorter than the longest, it waits.

        `keep` takes each block as soon as it is joined and returns a reference for the shard to hold instead; `ray.put` is one.
        """
        return Shard(
            blocks=[keep(self._block(rows)) for rows in self._blocks(data_rank)],
            version=self._version,
            number=self._number,
            useful_token_share=self._useful_token_share,
            update_samples=len(self._samples),
            update_tokens=self._num_tokens,
        )

    def by_sample(self, columns: Sequence[Sequence[dict[str, np.ndarray]]]) -> list[dict[str, np.ndarray]]:
        """Columns of the trained tokens by sequence, from those of the blocks by data-parallel rank."""
        found: list[dict[str, np.ndarray]] = [{} for _ in self._samples]
        for data_rank, of_blocks in enumerate(columns):
            for rows, block in zip(self._blocks(data_rank), of_blocks, strict=True):
                indices = [index for row in rows for index in row]
                ends = np.cumsum([self._samples[index].num_trained_tokens for index in indices])
                for name, values in block.items():
                    assert len(values) == (ends[-1] if indices else 0), f"{len(values)} values of {name} in a block"
                    for index, part in zip(indices, np.split(values, ends[:-1])):
                        found[index][name] = part
        return found

    def _blocks(self, data_rank: int) -> Iterator[list[list[int]]]:
        """The rank's rows of sequences, parted where the tokens before a row reach a multiple of a block's."""
        rows = [sorted(row, key=self._length, reverse=True) for row in self._packing[data_rank]]
        before = itertools.accumulate((sum(map(self._length, row)) for row in rows), initial=0)
        for _, pairs in itertools.groupby(zip(before, rows), key=lambda pair: pair[0] // BLOCK_TOKENS):
            yield [row for _, row in pairs]

    def _length(self, index: int) -> int:
        return len(self._samples[index].tokens)

    def _block(self, rows: list[list[int]]) -> PackedRows:
        indices = [index for row in rows for index in row]
        columns: dict[str, np.ndarray] = {}
        numbers: dict[str, np.ndarray] = {}
        for kind in self._types:
            values = [self._values(index, kind) for index in indices]
            if kind not in (TOKEN, MASK) and not kind.shape and not any(isinstance(value, np.ndarray) for value in values):
                numbers[kind.name] = np.array(values, dtype=kind.dtype)
            else:
                columns[kind.name] = self._joined(indices, kind, values)
        return PackedRows(
            indices=np.array(indices, dtype=np.int64),
            num_tokens=np.array([self._length(index) for index in indices], dtype=np.int64),
            num_response_tokens=np.array([len(self._samples[index].loss_mask) for index in indices], dtype=np.int64),
            columns=columns,
            numbers=numbers,
            types={kind.name: kind for kind in self._types},
            row_sizes=[len(row) for row in rows],
        )

    def _values(self, index: int, kind: ColumnType) -> Any:
        try:
            return self._samples[index].values(kind)
        except SampleError as error:
            raise SampleError(f"sample {index} of an update: {error}") from error

    def _joined(self, indices: list[int], kind: ColumnType, values: list[Any]) -> np.ndarray:
        counts = [0 if isinstance(value, np.ndarray) else self._samples[i].num_places(kind) for i, value in zip(indices, values)]
        parts = [value if isinstance(value, np.ndarray) else np.full(n, value, kind.dtype) for n, value in zip(counts, values)]
        return np.concatenate([np.zeros((0, *kind.shape), kind.dtype), *parts])


def without_first(mask: np.ndarray, num_tokens: np.ndarray, num_response_tokens: np.ndarray) -> np.ndarray:
    """The mask of sequences stored end to end, without the first token of any sequence, because nothing predicts it."""
    starts = np.cumsum(num_response_tokens) - num_response_tokens
    first = starts[(num_tokens == num_response_tokens) & (num_response_tokens > 0)]
    if not len(first):
        return mask
    mask = mask.copy()
    mask[first] = False
    return mask


def sums(flags: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Number of set flags in each of the consecutive parts that have these lengths."""
    ends = np.cumsum(counts)
    return np.array([np.count_nonzero(flags[end - size : end]) for end, size in zip(ends, counts)], np.int64)
