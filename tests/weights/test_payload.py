"""The digest sees what may happen to bytes on their way; both ways of computing it, as no test here has a GPU."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vime.weights.payload import WeightDigest, fingerprint
from vime.weights.words import CHUNK_WORDS, WordSums, sum_of_words

WAYS = [fingerprint, sum_of_words]
SIZES = st.one_of(st.integers(1, 9), st.sampled_from([2 * CHUNK_WORDS - 1, 2 * CHUNK_WORDS, 4 * CHUNK_WORDS + 3]))


@pytest.mark.parametrize("way", WAYS)
@settings(deadline=None, max_examples=50)
@given(size=SIZES, data=st.data())
def test_a_changed_and_a_moved_value_are_seen(way: Callable[[torch.Tensor], int], size: int, data: st.DataObject):
    sent = torch.arange(1, size + 1, dtype=torch.int16).view(torch.bfloat16)
    first, second = data.draw(st.integers(0, size - 1)), data.draw(st.integers(0, size - 1))
    changed, moved = sent.clone(), sent.clone()
    changed.view(torch.int16)[first] ^= 1 << data.draw(st.integers(0, 14))
    moved[[first, second]] = sent[[second, first]]
    assert way(sent.clone()) == way(sent) != way(changed)
    assert (way(moved) == way(sent)) == (sent.view(torch.int16)[first] == sent.view(torch.int16)[second])


@pytest.mark.parametrize("way", WAYS)
def test_only_the_values_count_not_how_they_lie_in_memory(way: Callable[[torch.Tensor], int]):
    wide = torch.randn(6, 10)
    assert way(wide.t()) == way(wide.t().contiguous()) and way(wide[1:, 3:]) == way(wide[1:, 3:].clone())


def test_names_types_and_shapes_count_and_the_order_does_not():
    tensors = {"a": torch.zeros(4), "b": torch.ones(2, 2)}

    def digest(**given: torch.Tensor) -> str:
        found = WeightDigest()
        for name, tensor in given.items():
            found.update(name, tensor)
        return found.hexdigest()

    assert digest(**tensors) == digest(b=tensors["b"], a=tensors["a"])
    others = [{"a": torch.ones(2, 2), "b": torch.zeros(4)}, {**tensors, "a": torch.zeros(2, 2)}]
    others += [{**tensors, "a": torch.zeros(4, dtype=torch.int32)}, {"b": tensors["b"]}]
    assert all(digest(**other) != digest(**tensors) for other in others)


@settings(deadline=None, max_examples=20)
@given(sizes=st.lists(SIZES, max_size=6), buffer_chunks=st.integers(1, 5))
def test_tensors_that_are_summed_together_have_the_numbers_that_they_have_alone(sizes: list[int], buffer_chunks: int):
    generator = torch.Generator().manual_seed(sum(sizes))
    tensors = [torch.randn(2, size, generator=generator).bfloat16().t() for size in sizes]
    sums = WordSums(buffer_chunks)
    for tensor in tensors:
        kept = tensor.clone()
        sums.add(kept)
        kept.zero_()  # a buffer of the transport is used again
    assert sums.found() == [sum_of_words(tensor) for tensor in tensors]
    assert sums.found() == []
