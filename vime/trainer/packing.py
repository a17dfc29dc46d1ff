"""Packing: which sequences go into which micro-batch on which data-parallel rank.

Best fit, longest first, says how many micro-batches are needed; their number is rounded up so that every rank gets the same,
because pipeline and collectives run in lockstep. The sequences are then spread over all of them, so that the fullest is as
short as can be found quickly, and micro-batches of about equal length are dealt to the ranks, each to the rank with the least
work so far. No sequence is dropped.
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable

from vime.config import ModelConfig
from vime.model.families import family_of

EVEN_ENOUGH = 1.01
"""Ratio of the fullest micro-batch to the mean number of tokens up to which no better packing is sought."""

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
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    fitted = _best_fit(order, lengths, max_tokens)
    multiple = num_ranks * count_multiple
    count = max(-(-len(fitted) // multiple), 1) * multiple
    bins = _spread(order, lengths, max_tokens, count)
    if bins is None or _fullest(bins, lengths) * count > EVEN_ENOUGH * sum(lengths):
        tightest = _split_until(_tightest_fit(fitted, order, lengths, max_tokens, count), lengths, count)
        bins = min(bins or tightest, tightest, key=lambda bins: _fullest(bins, lengths))
    return _deal(bins, lengths, num_ranks, work)


def useful_share(rows: list[list[int]], num_tokens: int) -> float:
    """Share of places that hold a token, in rows that ranks train in lockstep; `rows[rank][number]` is a row's length.

    A rank whose row is shorter than the longest of the same number waits for it. 1 if there are no places.
    Example: `useful_share([[4, 4], [4, 2]], 14)` is 14 / 16.
    """
    places = len(rows) * sum(max(column) for column in zip(*rows))
    return num_tokens / places if places else 1.0


def sequence_flops(model: ModelConfig, length: int) -> float:
    """Forward and backward floating-point operations of one sequence: 6 per parameter and token, and causal attention.

    Linear attention multiplies each value head's state three times for each token, whatever the length.
    """
    heads, kv_heads, width, linear = model.num_attention_heads, model.num_key_value_heads, model.head_dim, model.linear_attention
    num_linear, gates = linear.num_linear(model.num_layers), family_of(model.family).gates_attention
    num_full = model.num_layers - num_linear
    attention = model.hidden_size * width * ((2 + gates) * heads + 2 * kv_heads)
    delta_net = model.hidden_size * (sum(linear.input_parts) + linear.value_width) + 3 * linear.value_width * linear.key_head_dim
    experts = model.num_experts_per_token * model.moe_intermediate_size if model.num_experts else model.intermediate_size
    per_token = num_full * attention + num_linear * delta_net
    per_token += model.num_layers * 3 * model.hidden_size * experts + model.hidden_size * model.vocab_size
    return 6.0 * per_token * length + 6.0 * num_full * heads * width * length * length


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


def _spread(order: list[int], lengths: list[int], max_tokens: int, count: int) -> list[list[int]] | None:
    """Each sequence into the emptiest of `count` bins, longest first; None if one would then hold more than `max_tokens`."""
    bins: list[list[int]] = [[] for _ in range(count)]
    heap = [(0, number) for number in range(count)]
    for index in order:
        tokens, number = heap[0]
        if tokens and tokens + lengths[index] > max_tokens:
            return None
        bins[number].append(index)
        heapq.heapreplace(heap, (tokens + lengths[index], number))
    return bins


def _tightest_fit(fitted: list[list[int]], order: list[int], lengths: list[int], max_tokens: int, count: int) -> list[list[int]]:
    """Best fit into at most `count` bins of the smallest size for which that succeeds; `fitted` is that of `max_tokens`.

    This is MULTIFIT (Coffman, Garey and Johnson, 1978).
    """
    low, high = -(-sum(lengths) // count), max_tokens
    while low < high:
        middle = (low + high) // 2
        tried = _best_fit(order, lengths, middle)
        if len(tried) <= count:
            fitted, high = tried, middle
        else:
            low = middle + 1
    return fitted


def _split_until(bins: list[list[int]], lengths: list[int], count: int) -> list[list[int]]:
    """Halves the fullest of the bins that can be halved until there are `count`."""
    heap = [(-_tokens(members, lengths), number) for number, members in enumerate(bins) if len(members) > 1]
    heapq.heapify(heap)
    while len(bins) < count and heap:
        _, number = heapq.heappop(heap)
        halves = bins[number][0::2], bins[number][1::2]
        for members, place in zip(halves, (number, len(bins))):
            if len(members) > 1:
                heapq.heappush(heap, (-_tokens(members, lengths), place))
        bins[number] = halves[0]
        bins.append(halves[1])
    return bins + [[] for _ in range(count - len(bins))]


def _deal(bins: list[list[int]], lengths: list[int], num_ranks: int, work: Callable[[int], float]) -> Packing:
    """Deals ranks equally many bins: neighbours in length go to different ranks, the one with most work to the least loaded."""
    ordered = sorted(bins, key=lambda members: -_tokens(members, lengths))
    if num_ranks == 1:
        return [ordered]
    work_of = {length: work(length) for length in set(lengths)}
    ranks: Packing = [[] for _ in range(num_ranks)]
    loads = [0.0] * num_ranks
    for start in range(0, len(ordered), num_ranks):
        column = [(sum(work_of[lengths[index]] for index in members), members) for members in ordered[start : start + num_ranks]]
        column.sort(key=lambda pair: -pair[0])
        for (cost, members), rank in zip(column, sorted(range(num_ranks), key=lambda rank: (loads[rank], rank))):
            ranks[rank].append(members)
            loads[rank] += cost
    return ranks


def _fullest(bins: list[list[int]], lengths: list[int]) -> int:
    return max(_tokens(members, lengths) for members in bins)


def _tokens(members: list[int], lengths: list[int]) -> int:
    return sum(lengths[index] for index in members)
