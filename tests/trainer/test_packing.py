"""Packing: nothing lost, limits kept, rows even, ranks balanced."""

import random
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

from vime.config import ModelConfig
from vime.trainer.packing import pack, sequence_flops, useful_share

PAPER: dict[str, Callable[[int, int], list[tuple[int, int]]]] = runpy.run_path(
    str(Path(__file__).parents[2] / "tools" / "sample_lengths.py")
)["PAPER"]


def ragged(count: int, *, seed: int = 0) -> list[int]:
    generator = random.Random(seed)
    return [generator.randint(5, 900) for _ in range(count)]


@pytest.mark.parametrize("num_ranks", [1, 2, 5])
def test_every_sequence_is_packed_once_within_the_limit(num_ranks: int) -> None:
    lengths = ragged(500)
    packing = pack(lengths, max_tokens=2048, num_ranks=num_ranks)
    assert sorted(index for rank in packing for batch in rank for index in batch) == list(range(500))
    assert all(sum(lengths[index] for index in batch) <= 2048 for rank in packing for batch in rank)


def test_all_ranks_have_equally_many_micro_batches() -> None:
    packing = pack(ragged(37), max_tokens=1500, num_ranks=4)
    assert len({len(rank) for rank in packing}) == 1


def test_a_sequence_above_the_limit_gets_a_micro_batch_of_its_own() -> None:
    packing = pack([10, 5000, 20, 30], max_tokens=100)
    assert [1] in packing[0]
    assert sorted(index for batch in packing[0] for index in batch) == [0, 1, 2, 3]


def test_fewer_sequences_than_ranks_leave_empty_micro_batches() -> None:
    packing = pack([10, 12], max_tokens=100, num_ranks=3)
    assert [len(rank) for rank in packing] == [1, 1, 1]
    assert sum(len(batch) for rank in packing for batch in rank) == 2
    assert pack([], max_tokens=100, num_ranks=2) == [[[]], [[]]]


def test_micro_batches_are_full_and_ranks_share_the_work() -> None:
    lengths = ragged(3000)
    model = ModelConfig()
    packing = pack(lengths, max_tokens=8192, num_ranks=4, work=lambda length: sequence_flops(model, length))
    loads = [sum(sequence_flops(model, lengths[index]) for batch in rank for index in batch) for rank in packing]
    assert max(loads) < 1.02 * min(loads)
    num_micro_batches = sum(len(rank) for rank in packing)
    assert sum(lengths) / (num_micro_batches * 8192) > 0.97


def test_packing_starts_with_the_longest_and_fills_the_tightest_gap() -> None:
    assert pack([5, 3, 4, 2], max_tokens=7) == [[[0, 3], [2, 1]]]


def test_the_number_of_micro_batches_can_be_a_multiple():
    lengths = [40, 33, 30, 21, 20, 9, 8, 8]
    plain, multiple = pack(lengths, max_tokens=60), pack(lengths, max_tokens=60, count_multiple=4)
    assert (len(plain[0]), len(multiple[0])) == (3, 4)
    assert sorted(index for row in multiple[0] for index in row) == list(range(len(lengths)))


def rows_of(packing: list[list[list[int]]], lengths: list[int]) -> list[list[int]]:
    return [[sum(lengths[index] for index in row) for row in rank] for rank in packing]


@pytest.mark.parametrize("num_ranks", [1, 2, 8])
@pytest.mark.parametrize("method", [*PAPER, "all"])
def test_rows_are_even_and_ranks_balanced_on_the_lengths_of_all_methods(method: str, num_ranks: int):
    methods = PAPER if method == "all" else {method: PAPER[method]}
    lengths = [sum(pair) for draw in methods.values() for pair in draw(96, 3)]
    random.Random(3).shuffle(lengths)
    model = ModelConfig(num_layers=28, hidden_size=3584, num_attention_heads=28, head_dim=128, intermediate_size=18944)
    packing = pack(lengths, max_tokens=32768, num_ranks=num_ranks, work=lambda length: sequence_flops(model, length))
    assert sorted(index for rank in packing for row in rank for index in row) == list(range(len(lengths)))
    assert len({len(rank) for rank in packing}) == 1
    rows = rows_of(packing, lengths)
    flat = [tokens for rank in rows for tokens in rank]
    assert max(flat) <= 32768
    assert useful_share(rows, sum(lengths)) >= 0.97
    assert sum(flat) >= 0.97 * max(flat) * len(flat)
    loads = [sum(sequence_flops(model, lengths[index]) for row in rank for index in row) for rank in packing]
    assert max(loads) * len(loads) <= 1.05 * sum(loads)


def test_rounding_up_for_the_ranks_fills_all_rows_instead_of_splitting_some():
    lengths = [10] * 45  # 12 rows of 40 tokens at most, 16 for 8 ranks with as many rows each
    rows = rows_of(pack(lengths, max_tokens=40, num_ranks=8), lengths)
    assert sorted(tokens for rank in rows for tokens in rank) == [20] * 3 + [30] * 13
    assert useful_share(rows, 450) == 450 / 480


def test_rows_that_cannot_be_spread_are_filled_as_tightly_as_they_fit():
    lengths = [6, 5, 5, 4, 4, 4, 4]  # longest first to the emptiest makes 6 + 4 + 4 and 5 + 5 + 4, and the last 4 fits nowhere
    assert rows_of(pack(lengths, max_tokens=16), lengths) == [[16, 16]]


def test_the_useful_share_counts_who_waits():
    assert useful_share([[4, 4], [4, 2]], 14) == 14 / 16
    assert useful_share([[0], [0]], 0) == 1.0
