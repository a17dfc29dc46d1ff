"""Packing: which sequences go into which micro-batch on which data-parallel rank.

Sequences are dealt to ranks by estimated work, longest first, then packed per rank with best fit, longest first. Every rank
gets the same number of micro-batches, because pipeline and collectives run in lockstep. No sequence is dropped.
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable

from vime.config import ModelConfig

Packing = list[list[list[int]]]
"""Indices of sequences by rank, then by micro-batch; a micro-batch may be empty when sequences are fewer than ranks."""


def pack(
    lengths: list[int],
    *,
    max_tokens: int,
    num_ranks: int = 1,
    work: Callable[[int], float] = float,
    count_multiple: int = 1,
) -> Packing:
    """Deals sequences of these lengths to ranks and micro-batches of at most `max_tokens` tokens.

    A sequence longer than `max_tokens` gets a micro-batch of its own. `work` estimates the cost of a sequence from its
    length (`sequence_flops`). Within a micro-batch the longest sequence comes first. Their number is a multiple of
    `count_multiple`, which interleaved pipelines need.
    Example: `pack([5, 3, 4, 2], max_tokens=7)` is `[[[0, 3], [2, 1]]]`.
    """
    by_rank = [_best_fit(indices, lengths, max_tokens) for indices in _deal(lengths, num_ranks, work)]
    num_micro_batches = max(max((len(bins) for bins in by_rank), default=0), 1)
    num_micro_batches += -num_micro_batches % count_multiple
    for bins in by_rank:
        _split_until(bins, num_micro_batches, lengths)
    return by_rank


def sequence_flops(model: ModelConfig, length: int) -> float:
    """Forward and backward floating-point operations of one sequence: 6 per parameter and token, and causal attention."""
    heads, kv_heads, width = model.num_attention_heads, model.num_key_value_heads, model.head_dim
    attention = model.hidden_size * width * (2 * heads + 2 * kv_heads)
    experts = model.num_experts_per_token * model.moe_intermediate_size if model.num_experts else model.intermediate_size
    per_token = model.num_layers * (attention + 3 * model.hidden_size * experts) + model.hidden_size * model.vocab_size
    return 6.0 * per_token * length + 6.0 * model.num_layers * heads * width * length * length


def _deal(lengths: list[int], num_ranks: int, work: Callable[[int], float]) -> list[list[int]]:
    """Longest first, each to the rank with the least work so far."""
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    if num_ranks == 1:
        return [order]
    ranks: list[list[int]] = [[] for _ in range(num_ranks)]
    heap = [(0.0, rank) for rank in range(num_ranks)]
    for index in order:
        load, rank = heapq.heappop(heap)
        ranks[rank].append(index)
        heapq.heappush(heap, (load + work(lengths[index]), rank))
    return ranks


def _best_fit(order: list[int], lengths: list[int], max_tokens: int) -> list[list[int]]:
    """Puts each sequence where the least room is left over; `order` is longest first."""
    bins: list[list[int]] = []
    room: list[tuple[int, int]] = []
    for index in order:
        place = bisect_left(room, (lengths[index], -1))
        if place < len(room):
            left, number = room.pop(place)
        else:
            left, number = max_tokens, len(bins)
            bins.append([])
        bins[number].append(index)
        if left > lengths[index]:
            insort(room, (left - lengths[index], number))
    return bins


def _split_until(bins: list[list[int]], count: int, lengths: list[int]) -> None:
    """Halves the fullest micro-batch until there are `count`; adds empty ones when only single sequences are left."""
    while len(bins) < count:
        divisible = [number for number, members in enumerate(bins) if len(members) > 1]
        if not divisible:
            bins.append([])
            continue
        number = max(divisible, key=lambda number: sum(lengths[index] for index in bins[number]))
        members = bins[number]
        bins[number] = members[0::2]
        bins.append(members[1::2])
