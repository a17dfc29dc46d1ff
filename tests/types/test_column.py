"""A column is to users' code what a list was, and holds a few bytes a number."""

import pickle
import sys

import numpy as np
import pytest

from vime.types.column import Column

VALUES = [5, 9, 5, 2]
TUPLE = (1,)


def column() -> Column[int]:
    return Column(VALUES, np.int32)


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x + VALUES,
        lambda x: VALUES + x,
        lambda x: x + x,
        lambda x: x * 2,
        lambda x: 2 * x,
        lambda x: x[1:3] + x[:-1],
        lambda x: x[-1],
        lambda x: x[::-1],
        lambda x: (len(x), sum(x), max(x), sorted(x), list(reversed(x)), x.count(5), x.index(5, 1), 9 in x, 7 in x),
        lambda x: [value + 0.5 for value in x],
        lambda x: (
            bool(x),
            bool(x[:0]),
            x == VALUES,
            VALUES.__class__(x) == x,
            x == VALUES[:-1],
            x != VALUES,
            x == tuple(VALUES),
        ),
        lambda x: list(zip(x, x[2:])),
        lambda x: np.asarray(x).tolist(),
        lambda x: (x + np.ones(4)).tolist(),
        lambda x: repr(x),
        lambda x: f"{x[0]}",
    ],
)
def test_what_code_does_with_a_list_gives_the_same_with_a_column(use):
    assert use(column()) == use(list(VALUES))
    assert type(use(column())) in (type(use(list(VALUES))), Column)


@pytest.mark.parametrize(
    "use", [lambda x: x + TUPLE, lambda x: x[1.0], lambda x: x[[0, 1]], lambda x: hash(x), lambda x: x.index(7), lambda x: x[9]]
)
def test_what_a_list_refuses_a_column_refuses(use):
    with pytest.raises((TypeError, ValueError, IndexError)) as of_list:
        use(list(VALUES))
    with pytest.raises(of_list.type):
        use(column())


def test_values_are_pythons_own_numbers():
    assert {type(value) for value in column()} == {int} == {type(column()[0])}
    assert {type(value) for value in Column([0.5], np.float32)} == {float}


def test_nobody_changes_it_and_slices_and_arrays_share_its_memory():
    numbers = column()
    with pytest.raises(TypeError):
        numbers[0] = 3  # type: ignore[index]
    for array in (np.asarray(numbers), numbers[1:].array):
        assert np.shares_memory(array, numbers.array)
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 3


@pytest.mark.parametrize("values", [[1.5], [2**31], [2**70], [-(2**31) - 1], ["a"], [None], [[1]], 5])
def test_what_the_type_cannot_hold_is_refused(values):
    with pytest.raises((TypeError, ValueError, OverflowError)):
        Column(values, np.int32)


def test_a_column_is_copied_and_written_whole():
    for values, dtype in ((VALUES, np.int32), ([], np.uint8), ([-0.1, float("inf")], np.float32)):
        numbers = Column(values, dtype)
        assert pickle.loads(pickle.dumps(numbers)) == numbers == Column.from_text(numbers.to_text(), dtype)
        assert pickle.loads(pickle.dumps(numbers)).array.dtype == dtype


def test_a_pickle_is_as_large_as_its_numbers():
    numbers = Column(np.zeros(100_000, np.int32), np.int32)
    assert len(pickle.dumps(numbers, protocol=5)) < 400_000 + 300
    assert sys.getsizeof(numbers) < 100


def test_a_list_compares_from_its_own_side():
    assert VALUES.__class__(VALUES) == column() and VALUES[1:] != column()
