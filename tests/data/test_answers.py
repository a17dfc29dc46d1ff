"""Reference answers are texts and numbers in the layouts of published data sets; anything else is refused by its row."""

import datetime
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from vime.config import DatasetConfig
from vime.data.dataset import check_rows, load_rows, to_prompt
from vime.errors import ConfigError
from vime.files.jsonl import write_lines

GENERATED: list[dict[str, Any]] = []


def generated(*, num_items: int, seed: int) -> list[dict[str, Any]]:
    """The rows that a test wants from a generator."""
    return GENERATED


def references(row: dict[str, Any]) -> list[str]:
    """The reference answers of a row that a run would accept."""
    check_rows([row], DatasetConfig(path="rows.jsonl"))
    return to_prompt(row, index=0, row_number=0, dataset="train").ground_truth


MATH = r"We add, \boxed{3} for now, so $x = \boxed{\frac{1}{2}}$."


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"reward_model": {"style": "rule", "ground_truth": "34"}}, ["34"]),
        ({"reward_model": {"style": "rule", "ground_truth": {"target": ["Paris", "City of Light"]}}}, ["Paris", "City of Light"]),
        ({"reward_model": {"ground_truth": {"target": "Paris", "numbers": None}}}, ["Paris"]),
        ({"reward_model": {"ground_truth": ["x", "y"]}, "answer": "z"}, ["x", "y"]),
        ({"golden_answers": ["Paris"], "data_source": "nq"}, ["Paris"]),
        ({"answers": {"text": ["Paris", "paris"], "answer_start": [3, 3]}}, ["Paris", "paris"]),
        ({"answer": {"value": "Paris", "aliases": ["City of Light"], "type": "WikipediaEntity"}}, ["Paris", "City of Light"]),
        ({"answer": "He has 72 / 2 = <<72/2=36>>36.\nThen 72.\n#### 72"}, ["72"]),
        ({"answer": "#### -1,000\n"}, ["-1,000"]),
        ({"answer": "#### \nno"}, ["#### \nno"]),
        ({"answer": "A #### inside\na line"}, ["A #### inside\na line"]),
        ({"solution": MATH, "level": "Level 5"}, [r"\frac{1}{2}"]),
        ({"solution": MATH, "answer": "1/2"}, ["1/2"]),
        ({"solution": r"$\frac12$"}, [r"$\frac12$"]),
        ({"final_answer": "7"}, ["7"]),
        ({"label": "Dallas", "metadata": {"tools": []}}, ["Dallas"]),
        ({"label": 3}, ["3"]),
        ({"answer": 0.5}, ["0.5"]),
        ({"answer": Decimal("1E+2")}, ["100"]),
        ({"answer": [1, 2.5, "three"]}, ["1", "2.5", "three"]),
        ({"answer": np.float32(0.1)}, ["0.1"]),
        ({"answer": np.array(["a", "b"])}, ["a", "b"]),
        ({"answer": np.int64(7)}, ["7"]),
        ({"answers": [], "answer": "5"}, ["5"]),
        ({"answer": " ", "label": "5"}, ["5"]),
        ({"answer": ["", "5"]}, ["5"]),
        ({"answer": ""}, []),
        ({"answer": None}, []),
        ({"answers": {"text": [], "answer_start": []}}, []),
        ({}, []),
    ],
)
def test_the_answers_of_published_layouts_are_found(fields: dict[str, Any], expected: list[str]):
    assert references({"question": "?", **fields}) == expected


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"answer": {"city": "Paris"}}, "a mapping of city for its answer"),
        ({"answer": {}}, "a mapping of nothing for its answer"),
        (
            {"reward_model": {"ground_truth": {"target": 98, "numbers": [44, 19, 35]}}},
            "a mapping of target, numbers for its reward_model",
        ),
        ({"answer": [["Paris", "Lyon"]]}, "a list in its answer"),
        ({"answer": [{"text": "Paris"}]}, "a dict in its answer"),
        ({"reward_model": {"ground_truth": {"target": [["Paris"]]}}}, "a list in its reward_model.ground_truth"),
        ({"answers": ["Paris", None]}, "a NoneType in its answers"),
        ({"answer": True}, "a bool for its answer"),
        ({"answer": np.bool_(True)}, "for its answer"),
        ({"label": [True, False]}, "a bool in its label"),
        ({"answer": float("nan")}, "nan, which is no number, for its answer"),
        ({"answer": [1.0, float("-inf")]}, "-inf, which is no number, in its answer"),
        ({"answer": Decimal("NaN")}, "NaN, which is no number"),
        ({"answer": b"Paris"}, "a bytes for its answer"),
        ({"answer": datetime.date(2026, 1, 2)}, "a date for its answer"),
        ({"answer": {"Paris", "Lyon"}}, "a set for its answer"),
    ],
)
def test_what_is_neither_text_nor_number_is_refused_with_the_rows_number(fields: dict[str, Any], problem: str):
    rows = [{"question": "?", "answer": "5"}, {"question": "?", **fields}]
    with pytest.raises(ConfigError) as raised:
        check_rows(rows, DatasetConfig(path="rows.jsonl"), key="data.evaluation.0")
    (found,) = raised.value.problems
    assert (
        found.key == "data.evaluation.0.path" and "1 of 2 rows, counted from 0, have no usable answer: row 1 has " in found.remedy
    )
    assert problem in found.remedy and "write a text, a number or a list" in found.remedy
    with pytest.raises(ConfigError, match="row 9 has"):
        to_prompt(rows[1], index=0, row_number=9, dataset="train")


@pytest.mark.parametrize("model", ["rule", ["rule"], 3, None, 0.5, True])
def test_a_reward_model_that_is_no_mapping_is_a_field_like_others(model: Any):
    row = {"question": "?", "reward_model": model, "answer": "5"}
    assert references(row) == ["5"]
    assert to_prompt(row, index=0, row_number=0, dataset="train").metadata == {"reward_model": model, "answer": "5"}


def test_questions_and_answers_that_cannot_be_used_are_told_at_once():
    with pytest.raises(ConfigError) as raised:
        check_rows([{"answer": "5", "text": "?"}, {"question": "?", "answer": True}], DatasetConfig(path="rows.jsonl"))
    first, second = (problem.remedy for problem in raised.value.problems)
    assert "row 0 has none of the fields" in first and "but answer, text" in first and "row 1 has a bool" in second


def test_empty_answers_are_counted(caplog: pytest.LogCaptureFixture):
    check_rows(
        [{"question": "?", "answer": ""}, {"question": "?"}, {"question": "?", "answer": "5"}], DatasetConfig(path="x.csv")
    )
    assert "1 of 3 rows of train have an empty answer" in caplog.text


def test_rows_of_verl_are_the_same_from_a_file_and_from_pandas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    row = {
        "data_source": "nq",
        "prompt": [{"role": "user", "content": "Capital?"}],
        "reward_model": {"style": "rule", "ground_truth": {"target": ["Paris"]}},
        "extra_info": {"index": 7, "split": "train"},
    }
    file = tmp_path / "train.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), file)
    write_lines(tmp_path / "train.jsonl", [row])
    pandas = pyarrow.parquet.read_table(file).to_pandas().to_dict("records")
    assert isinstance(pandas[0]["prompt"], np.ndarray)
    monkeypatch.setattr(sys.modules[__name__], "GENERATED", pandas)
    by_pandas = DatasetConfig(generator=f"{__name__}.generated", num_items=1)
    sets = [by_pandas, DatasetConfig(path=str(file)), DatasetConfig(path=str(tmp_path / "train.jsonl"))]
    first, *others = (to_prompt(load_rows(each)[0], index=0, row_number=0, dataset="train") for each in sets)
    assert others == [first, first] and first.ground_truth == ["Paris"]
