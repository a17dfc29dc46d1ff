"""Packing: nothing lost, limits kept, ranks balanced."""

import random

import pytest

from vime.config import ModelConfig
from vime.data.packing import pack, sequence_flops


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
