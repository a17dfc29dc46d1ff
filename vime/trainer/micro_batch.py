"""Micro-batches: sequences packed into one row of tokens, with the columns of their trained tokens as tensors.

Shape suffixes: T tokens of this rank's part of the row, R of the whole row, N wanted tokens (those that are trained, or all
response tokens for plain logprobs), M those of them that this rank predicts: all, unless context parallelism shares them.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from vime.trainer.packed_sequences import PackedSequences, packed_sequences, to_device, zigzag
from vime.trainer.routing_replay import Routing
from vime.trainer.shard import PackedRows, RowShare, Shard, sums, without_first
from vime.types.column import ROUTED_EXPERTS, ColumnType, Defined
from vime.types.routed_experts import unknown


@dataclass(kw_only=True, slots=True)
class Wanted:
    """The tokens of a row whose logprobs are wanted, and the places where this rank's part predicts them.

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
    """Sequences in one packed row; this rank holds a part of the row. Everything of shape N is the same on all ranks of the row.

    Example: one sequence `tokens=[1, 5, 9, 2], loss_mask=[1, 1]` has T = 4 and N = 2.
    """

    sample_indices: list[int]
    """Places in the update's list of sequences, in the order of the row."""
    token_counts: list[int]
    """Wanted tokens of each sequence."""
    tokens_T: torch.Tensor
    packed: PackedSequences
    wanted: Wanted
    columns: dict[str, torch.Tensor]
    """Columns by name, with an entry for each of this rank's T tokens if a column is defined everywhere, for each sequence if it
    is defined by sequence, otherwise for each of the N tokens."""
    target_N: torch.Tensor
    """Ids of the tokens whose logprobs are wanted."""
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
        self._block_sizes = [len(block.row_sizes) for block in shard.blocks]
        self.useful_token_share, self._version = shard.useful_token_share, shard.version
        self.routings: list[Routing] | None = None
        """The routing of each row, in a pass that replays or records experts."""

    def routed(self, routings: "list[Routing] | None") -> "MicroBatches":
        """The same micro-batches for a pass with this routing; None leaves the choice of experts to the routers."""
        found = copy.copy(self)
        found.routings = routings
        return found

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[MicroBatch]:
        for number, row in enumerate(self._rows):
            routing = None if self.routings is None else self.routings[number]
            batch = _build(row, self._version, self._only_trained, self._share, self._device, is_routed=routing is not None)
            batch.packed.routing = routing
            yield batch

    def by_block(self, values: list[torch.Tensor]) -> list[np.ndarray]:
        """Values of the wanted tokens, [N] or [N, J] for each micro-batch, as one array for each block of the shard."""
        arrays = [part.float().cpu().numpy() for part in values]
        ends = np.cumsum(self._block_sizes).tolist()
        none = np.zeros((0, *(arrays[0].shape[1:] if arrays else ())), np.float32)
        return [np.concatenate([none, *arrays[end - n : end]]) for end, n in zip(ends, self._block_sizes)]

    @property
    def longest(self) -> int:
        """T of the micro-batch with most tokens."""
        return max(sum(self._share.fill(row.num_tokens.tolist() or [1])) // self._share.context_size for row in self._rows)


def _build(
    row: PackedRows, version: int, only_trained: bool, share: RowShare, device: torch.device | str, *, is_routed: bool = False
) -> MicroBatch:
    """Builds the micro-batch of a row; a row without sequences becomes one token without loss."""
    wanted = _wanted(row, only_trained)
    counts = sums(wanted, row.num_response_tokens)
    lengths = row.num_tokens.tolist() or [1]
    padded = share.fill(lengths)
    starts = (np.cumsum(padded) - np.asarray(padded, np.int64))[: len(row.num_tokens)]
    place_R = _places(starts, row.num_tokens)
    places_N = _places(starts + row.num_tokens - row.num_response_tokens, row.num_response_tokens)[wanted]
    own_T = slice(None) if share.context_size == 1 else zigzag(padded, share.context_rank, share.context_size)
    columns: dict[str, np.ndarray] = {}
    for name in (*row.columns, *row.numbers):
        kind = row.types[name]
        if name == ROUTED_EXPERTS.name and not is_routed:
            continue
        if kind.defined is Defined.everywhere:
            columns[name] = np.full((sum(padded), *kind.shape), _padding(kind), kind.dtype)
            columns[name][place_R] = _entries(row, name, row.num_tokens)
        elif kind.defined is Defined.sequence:
            columns[name] = (row.numbers if name in row.numbers else row.columns)[name].copy()
        elif name in row.numbers:
            columns[name] = _entries(row, name, counts)
        elif kind.defined is Defined.response:
            columns[name] = row.columns[name][wanted]
        elif only_trained:
            columns[name] = row.columns[name].copy()  # the shared one must not be written to
    tokens_R, version_N = columns.pop("token").astype(np.int64), columns.pop("version").astype(np.int64)
    target_N = columns.pop("target").astype(np.int64) if "target" in columns else tokens_R[places_N]
    experts = columns.pop(ROUTED_EXPERTS.name, None)
    cut = {name for name in columns if row.types[name].defined is Defined.everywhere}
    tensors = {name: torch.from_numpy(values) for name, values in columns.items()}
    packed = packed_sequences(padded, context_rank=share.context_rank, context_size=share.context_size, device=device)
    if is_routed:
        is_token_R = torch.zeros(sum(padded), dtype=torch.bool)
        is_token_R[torch.from_numpy(place_R)] = True
        packed.is_token_T = to_device(is_token_R[own_T], device)
    packed.experts_TLK = None if experts is None else to_device(torch.from_numpy(experts)[own_T], device)
    return MicroBatch(
        sample_indices=row.indices.tolist(),
        token_counts=counts.tolist(),
        tokens_T=to_device(torch.from_numpy(tokens_R)[own_T], device),
        packed=packed,
        wanted=_predicted(torch.from_numpy(places_N), torch.from_numpy(target_N), own_T, sum(padded), share, device),
        columns={name: to_device(tensor[own_T] if name in cut else tensor, device) for name, tensor in tensors.items()},
        target_N=to_device(torch.from_numpy(target_N), device),
        staleness_N=to_device(torch.from_numpy(version - version_N), device),
        sequence_N=to_device(torch.from_numpy(np.repeat(np.cumsum(counts > 0) - 1, counts)), device),
    )


def _padding(kind: ColumnType) -> float:
    """The value of a column in places of a row without a token; experts are then those that the routers choose."""
    return unknown(kind.dtype) if kind.name == ROUTED_EXPERTS.name else kind.fill or 0


def _predicted(
    places_N: torch.Tensor, targets_N: torch.Tensor, own_T: torch.Tensor | slice, num_R: int, share: RowShare, device: Any
) -> Wanted:
    """The places in this rank's part of a row that predict the tokens at `places_N`."""
    count = places_N.numel()
    if isinstance(own_T, slice):
        return Wanted(predict_M=to_device(places_N - 1, device), target_M=to_device(targets_N, device), place_M=None, count=count)
    position_R = torch.full((num_R,), -1)
    position_R[own_T] = torch.arange(own_T.numel())
    predict_N = position_R[places_N - 1]
    place_M = torch.nonzero(predict_N >= 0).flatten()
    return Wanted(
        predict_M=to_device(predict_N[place_M], device),
        target_M=to_device(targets_N[place_M], device),
        place_M=to_device(place_M, device),
        count=count,
    )


def _wanted(row: PackedRows, only_trained: bool) -> np.ndarray:
    """True for the response tokens whose logprobs are wanted."""
    mask = row.columns["mask"] if only_trained else np.ones_like(row.columns["mask"])
    return without_first(mask, row.num_tokens, row.num_response_tokens)


def _entries(row: PackedRows, name: str, counts: np.ndarray) -> np.ndarray:
    return np.repeat(row.numbers[name], counts) if name in row.numbers else row.columns[name]


def _places(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The places of parts of these lengths, one after another. Example: `_places([4, 9], [2, 1])` is `[4, 5, 9]`."""
    return np.repeat(starts - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
