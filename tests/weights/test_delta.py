"""Differences between two versions of the weights: the new one bit for bit, in little room if few bits have changed."""

from pathlib import Path

import pytest
import torch

from vime.weights.delta import Buckets, Sent, applied, difference, read_bucket
from vime.weights.payload import LacksBase

DTYPES = [torch.float32, torch.bfloat16, torch.int8]


def weights(seed: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: (50 * torch.randn(shape, generator=generator)).to(dtype) for name, shape in (("a", (64, 33)), ("b", (7,)))}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_versions_arrive_bit_for_bit_whole_and_as_differences(tmp_path: Path, dtype: torch.dtype):
    sent, held = Sent(num_deltas=2), None
    for version in range(8, 14):
        buckets, base = Buckets(version=version), sent.base
        files = [buckets.write(weights(10 * version + number, dtype), folder=tmp_path, base=base) for number in range(2)]
        sent.note(buckets)
        assert [file.suffix == ".delta" for file in files] == [(version - 8) % 3 != 0] * 2
        received = None
        for number, file in enumerate(files):
            tensors, received = read_bucket(str(file), held, received)
            for name, expected in weights(10 * version + number, dtype).items():
                assert torch.equal(dict(tensors)[name], expected)
        held = received


def test_a_version_has_the_same_bytes_whenever_it_is_written(tmp_path: Path):
    written = [Buckets(version=3) for _ in range(20)]
    for buckets in written:
        buckets.write(weights(1, torch.float32), folder=tmp_path, base=None)
    assert len({buckets.data[0] for buckets in written}) == 1


def test_at_a_small_learning_rate_a_tenth_of_the_bytes_travels():
    generator = torch.Generator().manual_seed(0)
    masters = 0.02 * torch.randn(1_000_000, generator=generator)
    before = masters.bfloat16().view(torch.uint8).numpy().tobytes()
    moved = masters + 1e-6 * torch.randn(masters.shape, generator=generator).sign()
    after = moved.bfloat16().view(torch.uint8).numpy().tobytes()
    changes = difference(after, before)
    assert before != after == applied(changes, before)
    assert len(changes) < len(after) / 10


def test_a_difference_from_another_version_or_one_that_is_damaged_is_noticed(tmp_path: Path):
    first, second = Buckets(version=1), Buckets(version=2)
    first.write(weights(1, torch.float32), folder=tmp_path, base=None)
    file = second.write(weights(2, torch.float32), folder=tmp_path, base=first)
    for held, reason in ((None, "none that can be changed"), (second, "the server has version 2")):
        with pytest.raises(LacksBase, match=reason):
            read_bucket(str(file), held, None)
    whole = file.read_bytes()
    for damaged in (whole[:-9] + bytes(9), whole[: len(whole) // 2] + bytes(30) + whole[len(whole) // 2 + 30 :]):
        file.write_bytes(damaged)
        with pytest.raises(LacksBase, match="damaged"):
            read_bucket(str(file), first, None)
