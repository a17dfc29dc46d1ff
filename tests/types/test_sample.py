"""The values that a sample hands to the trainer, and its written form."""

import numpy as np
import pytest

from vime.errors import SampleError
from vime.files.serialization import from_json, to_json
from vime.types import COLUMNS, Column, ColumnType, Defined, Sample
from vime.types.column import IDENTITY, LOGPROB, MASK, TOKEN, VERSION

TEACHER = ColumnType(name="teacher", shape=(2,))


def made(**fields: object) -> Sample:
    numbers = {"tokens": [1, 5, 9, 2], "loss_mask": [1, 0], "rollout_log_probs": [-0.5, 0.0], "weight_versions": [3, 4]}
    columns = {name: Column(values, COLUMNS[name]) for name, values in numbers.items()}
    return Sample(**{**columns, "response_length": 2, **fields})  # type: ignore[arg-type]


def test_its_fields_are_columns_without_a_copy():
    sample = made()
    fields = {"tokens": TOKEN, "rollout_log_probs": LOGPROB, "weight_versions": VERSION}
    assert all(np.shares_memory(sample.values(kind), getattr(sample, name).array) for name, kind in fields.items())
    assert sample.values(MASK).tolist() == [True, False]


def test_versions_that_are_all_the_same_are_one_number():
    assert made(weight_versions=Column([7, 7], np.int32)).values(VERSION) == 7


@pytest.mark.parametrize(
    ("kind", "entries"),
    [
        (TEACHER, [[0.5, 0.25]]),
        (ColumnType(name="teacher", defined=Defined.response), [0.5, 0.25]),
        (ColumnType(name="teacher", defined=Defined.everywhere), [0.0, 0.5, 0.25, 0.0]),
        (ColumnType(name="teacher", defined=Defined.sequence), [0.5]),
    ],
)
def test_a_column_has_an_entry_for_each_of_its_places(kind: ColumnType, entries: list[object]):
    assert made(columns={"teacher": entries}).values(kind).tolist() == entries
    with pytest.raises(SampleError, match="'teacher' has"):
        made(columns={"teacher": [*entries, entries[0]]}).values(kind)
    with pytest.raises(SampleError, match="no column 'teacher'"):
        made().values(kind)


@pytest.mark.parametrize("values", ["high", [[1.0], [2.0, 3.0]], [0.5, None], {"a": 1}])
def test_a_column_that_holds_no_numbers_is_refused_with_its_rollout(values: object):
    with pytest.raises(SampleError, match="rollout 3 of group -1: column 'teacher' holds no numbers"):
        made(rollout_id=3, columns={"teacher": values}).validate()
    made(columns={"teacher": [[0.5, 0.25]], "weight": 2, "spare": True}).validate()


def test_its_ids_are_columns():
    sample = made(rollout_id=9, order=1, pair=4, parent=0)
    assert [sample.values(kind) for kind in IDENTITY.values()] == [9, 1, 4, 0]


@pytest.mark.parametrize("compact", [False, True])
def test_columns_and_ids_are_written_where_they_are_set_and_read_back(compact: bool):
    sample = made(columns={"teacher": Column([0.5], np.float32), "weight": 0.25}, seat="critic", parent=0)
    again = Sample.from_dict(from_json(to_json(sample.to_dict(), compact=compact)))
    assert again == made(columns={"teacher": [0.5], "weight": 0.25}, seat="critic", parent=0)
    assert not {"columns", "order", "seat", "pair", "parent"} & made().to_dict().keys()


def test_the_first_token_of_a_sequence_is_not_trained():
    sample = Sample(tokens=[5, 9, 2], loss_mask=[1, 0, 1], response_length=3)
    assert sample.trained.tolist() == [False, False, True] and sample.num_trained_tokens == 1
