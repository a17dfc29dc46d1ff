"""Preparing training rows from hand-made rows in the layouts of ToolScale and GeneralThought."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentic.toolorchestra.data import from_general_thought, from_toolscale, main, prepare, source_of, without_nulls
from vime.config import DatasetConfig
from vime.data.dataset import load_rows, to_prompt


def toolscale(number: int = 17, *, seat: str = "4a") -> dict[str, Any]:
    """A row as its table reads: every argument of every tool is a column, filled with nulls."""
    arguments = {"seat": seat, "amount": None, "city": None}
    return {
        "id": f"task_{number}",
        "description": {"purpose": "book", "relevant_policies": None, "notes": None},
        "user_scenario": {
            "persona": None,
            "instructions": {
                "task_instructions": "Be short.",
                "reason_for_call": "I want to book a seat.",
                "known_info": None,
                "unknown_info": None,
                "domain": "railway",
            },
        },
        "initial_state": None,
        "evaluation_criteria": {
            "actions": [
                {"name": "book", "arguments": arguments, "action_id": "a"},
                {"name": "look", "arguments": None, "action_id": "b"},
            ],
            "communicate_info": [],
        },
    }


def test_a_task_of_toolscale():
    made = from_toolscale(toolscale())
    assert made is not None
    assert (made["problem"], made["eid"], made["category"]) == (
        "I want to book a seat. Be short.",
        "railway____task_17",
        "func_call",
    )
    actions = made["example"]["evaluation_criteria"]["actions"]
    assert [action["arguments"] for action in actions] == [{"seat": "4a"}, {}]
    assert "null" not in json.dumps(made)
    prompt = to_prompt(made, index=0, row_number=0, dataset="train")
    assert prompt.messages[0]["content"].startswith("I want") and prompt.metadata["example"]["id"] == "task_17"


def test_columns_may_be_json_texts():
    texts = {name: json.dumps(value) if isinstance(value, dict) else value for name, value in toolscale().items()}
    assert from_toolscale(texts) == from_toolscale(toolscale())


def test_a_question_of_general_thought():
    made = from_general_thought({"question_id": 81, "question": " 2+2? ", "reference_answer": "4", "model_answer": None})
    assert made == {"problem": "2+2?", "answer": "4", "eid": "generalthought____81", "category": "qa"}
    for bad in ({"question": "", "reference_answer": "4"}, {"question": "?", "reference_answer": None}):
        assert from_general_thought(bad) is None
    assert from_general_thought({"question": "why", "reference_answer": "long " * 200}) is None


def test_what_is_evaluated_on_is_not_trained_on():
    held = from_toolscale(toolscale(1))
    asked = {"question": "Which  City?", "reference_answer": "Rome"}
    held_question = from_general_thought({"question_id": 5, "question": "which city", "reference_answer": "Rome"})
    assert held is not None and held_question is not None
    source = [toolscale(1), toolscale(2, seat="5b"), asked, {"question": "Other?", "reference_answer": "yes"}]
    rows, left_out = prepare(source, evaluation=[held, held_question])
    assert [row["eid"].split("____")[0] for row in rows] == ["railway", "generalthought"]
    assert left_out == {"incomplete": 0, "in_evaluation": 2, "twice": 0}


def test_the_same_task_under_another_id_is_the_same():
    held = from_toolscale(toolscale(1))
    assert held is not None
    assert prepare([toolscale(99)], evaluation=[held])[0] == []
    assert prepare([toolscale(1), toolscale(2), toolscale(3, seat="6c")])[1]["twice"] == 1


def test_incomplete_tasks_are_counted():
    empty = toolscale()
    empty["evaluation_criteria"]["actions"] = []
    assert prepare([empty])[1]["incomplete"] == 1


def test_a_row_of_another_source_is_refused():
    with pytest.raises(ValueError, match="is from none of toolscale, generalthought"):
        source_of({"text": "x"})


def test_the_program(tmp_path: Path):
    source, held, output = tmp_path / "in.jsonl", tmp_path / "eval.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in (toolscale(1), toolscale(2, seat="5b"))))
    held.write_text(json.dumps(from_toolscale(toolscale(1))) + "\n")
    assert main([str(source), "--output", str(output), "--exclude", str(held)]) == 0
    (row,) = load_rows(DatasetConfig(path=str(output)))
    assert row["eid"] == "railway____task_2"


def test_nulls_go_at_any_depth_and_data_stay():
    assert without_nulls({"a": None, "b": {"c": None, "d": 0}, "e": [None, {"f": None}], "g": False}) == {
        "b": {"d": 0},
        "e": [None, {}],
        "g": False,
    }
