"""Packed sequences: the place of each token in a row, and the batches in which attention is computed.

A row holds its sequences one after another, longest first. Neighbours of similar length share one attention call as a batch
padded on the right: under a causal mask no real token sees the padding, so no mask is needed.

With context parallelism each sequence is cut into 2·C chunks for C ranks. Rank r holds chunks r and 2·C-1-r, so all ranks have
the same share of the causal triangle.

Shape suffixes: T tokens of this rank's row, R tokens of the whole row, P tokens with padding, S sequence, B batch, D channels.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from megatron.core.packed_seq_params import PackedSeqParams
from torch.nn.attention.bias import CausalBias, causal_lower_right

MIN_FILL = 0.8
"""A sequence shorter than this share of its batch's longest starts a new batch."""


@dataclass
class PackedSequences(PackedSeqParams):
    """Megatron's description of a packed row, with the plan of our own attention.

    Example: lengths [5, 4, 2] are two batches, (2, 5) and (1, 2): the second sequence is padded by one token, so
    `pad_index_P` has 12 entries and `unpad_index_T` 11.
    """

    batches: list[tuple[int, int]] = field(default_factory=list)
    """(sequences, padded length) of each attention call."""
    position_T: torch.Tensor | None = None
    lengths: list[int] = field(default_factory=list)
    """Lengths of the whole sequences."""
    chunks: list[tuple[int, CausalBias]] = field(default_factory=list)
    """This rank's chunks in order, with context parallelism: the number of the sequence, and which of its keys are seen."""
    gathered_R: torch.Tensor | None = None
    """The place of each token of the whole row in the context-parallel ranks' rows, one after another; None for one rank."""
    pad_index_P: torch.Tensor | None = None
    """Token in each padded place; None if no place is padded."""
    unpad_index_T: torch.Tensor | None = None
    cos_TD: torch.Tensor | None = None
    """Cosine of the rotary angle, half as wide as a head; None until the model fills it in."""
    sin_TD: torch.Tensor | None = None
    local: "PackedSequences | None" = None
    """The same with the rotary angles of layers of local attention; None if there are none."""
    experts_TLK: torch.Tensor | None = None
    """Experts that are replayed (`vime.trainer.routing_replay`), those of all layers; None if a row has none of its own."""
    is_token_T: torch.Tensor | None = None
    """False for fillers, in a pass that replays or records."""
    routing: Any = None
    """The routing of this row in a pass that replays or records; None if every router chooses."""
    chunks_of_states: "ChunkPlan | None" = None
    """The plan of layers of linear attention; None until the first of them asks for it."""
    windows: dict[tuple[int, int, int], torch.Tensor] = field(default_factory=dict)
    """Masks of blocks of local attention by the numbers of queries, keys and tokens that are seen."""

    def chunk_plan(self, size: int) -> "ChunkPlan":
        """The plan of layers of linear attention, in chunks of `size` tokens."""
        if self.chunks_of_states is None:
            assert self.position_T is not None
            self.chunks_of_states = _chunk_plan(self.lengths, size, self.position_T.device)
        return self.chunks_of_states

    def window(self, query: torch.Tensor, key: torch.Tensor, size: int, *, has_sinks: bool) -> torch.Tensor:
        """The mask that is added to the scores, [queries, keys]: each of the last positions sees `size` keys up to its own.

        With sinks there is one more query in front, and one more key, which all see.
        """
        queries, keys = query.shape[-2], key.shape[-2]
        if (queries, keys, size) not in self.windows:
            own = torch.arange(keys - queries, keys, device=query.device).unsqueeze(1)
            place = torch.arange(keys, device=query.device)
            hidden = (place > own) | (place <= own - size)
            hidden = F.pad(hidden, (1, 0, 1, 0)) if has_sinks else hidden
            self.windows[queries, keys, size] = query.new_zeros(hidden.shape).masked_fill_(hidden, -torch.inf)
        return self.windows[queries, keys, size]


def packed_sequences(
    lengths: list[int], *, context_rank: int = 0, context_size: int = 1, device: torch.device | str = "cpu"
) -> PackedSequences:
    """The description of sequences with these lengths, packed in this order.

    With several context-parallel ranks lengths are multiples of twice their number. Fillers at the end of a sequence count as
    its tokens: under a causal mask nothing sees them.
    """
    lengths_B = np.asarray(lengths, np.int64)
    ends_B = lengths_B.cumsum()
    cu_seqlens = to_device(torch.from_numpy(np.append(0, ends_B).astype(np.int32)), device)
    position_R = torch.from_numpy(np.arange(ends_B[-1]) - np.repeat(ends_B - lengths_B, lengths_B))
    longest = max(lengths)
    packed = PackedSequences(
        qkv_format="thd",
        cu_seqlens_q=cu_seqlens,
        cu_seqlens_kv=cu_seqlens,
        max_seqlen_q=longest,
        max_seqlen_kv=longest,
        lengths=lengths,
    )
    if context_size == 1:
        _plan_batches(packed, position_R, lengths_B, device)
        return packed
    for number, length in enumerate(lengths):
        chunk = length // (2 * context_size)
        ends = ((context_rank + 1) * chunk, length - context_rank * chunk)
        packed.chunks += [(number, causal_lower_right(chunk, end)) for end in ends]
    rows = [zigzag(lengths, rank, context_size) for rank in range(context_size)]
    packed.gathered_R = to_device(torch.cat(rows).argsort(), device)
    packed.position_T = to_device(position_R[rows[context_rank]], device)
    return packed


@dataclass(frozen=True, kw_only=True, slots=True)
class ChunkPlan:
    """The chunks in which a state passes over the sequences of a row: all first ones, all second ones, and so on.

    Example: lengths [5, 3] in chunks of 2 tokens are the chunks 0 1, 5 6, 2 3, 7 -, 4 -, and `at_step` is [2, 2, 1].
    """

    index_P: torch.Tensor
    """Token in each place of the chunks; T, one past the last token, in places without one."""
    place_T: torch.Tensor
    """Place of each token in the chunks."""
    at_step: list[int]
    """Number of sequences that have a first, a second, … chunk; in every step they are the first ones of the step before."""


def _chunk_plan(lengths: list[int], size: int, place: torch.device) -> ChunkPlan:
    lengths_B = np.asarray(lengths, np.int64)
    starts_B, counts_B = lengths_B.cumsum() - lengths_B, -(-lengths_B // size)
    order_B = np.argsort(-counts_B, kind="stable")
    at_step = [int((counts_B > step).sum()) for step in range(int(counts_B.max()))]
    step_N = np.repeat(np.arange(len(at_step)), at_step)
    sequence_N = np.concatenate([order_B[:count] for count in at_step])
    offset_NC = step_N[:, None] * size + np.arange(size)
    index_NC = np.where(offset_NC < lengths_B[sequence_N, None], starts_B[sequence_N, None] + offset_NC, lengths_B.sum())
    index_P = torch.from_numpy(index_NC.reshape(-1))
    return ChunkPlan(
        index_P=to_device(index_P, place), place_T=to_device(index_P.argsort()[: int(lengths_B.sum())], place), at_step=at_step
    )


def to_device(tensor: torch.Tensor, place: torch.device | str) -> torch.Tensor:
    """A tensor of the host on a device; to a GPU by page-locked memory, so that the host does not wait for its work."""
    return tensor.pin_memory().to(place, non_blocking=True) if torch.device(place).type == "cuda" else tensor.to(place)


def zigzag(lengths: list[int], rank: int, size: int) -> torch.Tensor:
    """Places of the whole row whose tokens a context-parallel rank holds, in its order.

    Example: `zigzag([8, 4], 0, 2)` is `[0, 1, 6, 7, 8, 11]`.
    """
    assert all(length % (2 * size) == 0 for length in lengths), f"{lengths} for {size} context-parallel ranks"
    parts, start = [], 0
    for length in lengths:
        chunk = length // (2 * size)
        for number in (rank, 2 * size - 1 - rank):
            parts.append(torch.arange(start + number * chunk, start + (number + 1) * chunk))
        start += length
    return torch.cat(parts)


def _plan_batches(packed: PackedSequences, position_T: torch.Tensor, lengths_B: np.ndarray, device: torch.device | str) -> None:
    packed.batches, packed.position_T = _batches(packed.lengths), to_device(position_T, device)
    if sum(count * length for count, length in packed.batches) == position_T.numel():
        return
    widths_B = np.repeat([length for _, length in packed.batches], [count for count, _ in packed.batches])
    unpad_index_T = torch.from_numpy(np.repeat(widths_B.cumsum() - widths_B, lengths_B)) + position_T
    pad_index_P = torch.zeros(int(widths_B.sum()), dtype=torch.int64)
    pad_index_P[unpad_index_T] = torch.arange(position_T.numel())
    packed.pad_index_P, packed.unpad_index_T = to_device(pad_index_P, device), to_device(unpad_index_T, device)


def _batches(lengths: list[int]) -> list[tuple[int, int]]:
    batches: list[tuple[int, int]] = []
    for length in lengths:
        if batches and MIN_FILL * batches[-1][1] <= length <= batches[-1][1]:
            batches[-1] = (batches[-1][0] + 1, batches[-1][1])
        else:
            batches.append((1, length))
    return batches


def fill_rotary(
    packed: PackedSequences,
    angles_SD: torch.Tensor,
    dtype: torch.dtype,
    *,
    factor: float = 1.0,
    local_frequencies_D: torch.Tensor | None = None,
) -> None:
    """Looks up cosine and sine of every token's position, times `factor` (`vime.trainer.rotary`).

    `angles_SD` are Megatron's, [longest, D] with equal halves; `local_frequencies_D`, half as wide, are those of local attention.
    """
    half_SD = angles_SD[:, : angles_SD.shape[1] // 2]
    packed.cos_TD = (half_SD.cos() * factor).to(dtype)[packed.position_T]
    packed.sin_TD = (half_SD.sin() * factor).to(dtype)[packed.position_T]
    if local_frequencies_D is not None:
        positions_S = torch.arange(len(half_SD), dtype=torch.float32, device=half_SD.device)
        local_SD = torch.outer(positions_S, local_frequencies_D)
        packed.local = replace(packed, local=None)
        packed.local.cos_TD = local_SD.cos().to(dtype)[packed.position_T]
        packed.local.sin_TD = local_SD.sin().to(dtype)[packed.position_T]
