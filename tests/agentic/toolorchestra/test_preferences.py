"""A user's preference is read by the orchestrator, weighted in its reward, and scored against the untrained model."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentic.toolorchestra import training_data
from agentic.toolorchestra.environment.tasks import generate_tasks
from agentic.toolorchestra.preferences import WISHES, mean_score, rows
from agentic.toolorchestra.reward import preference_of
from agentic.toolorchestra.rewards import Preference
from agentic.toolorchestra.settings import LimitsConfig
from tests.agentic.toolorchestra.stand_ins import Server, call, context_of, play, question, script, task_sample
from tests.agentic.toolorchestra.test_generate import expert
from vime.config import DatasetConfig
from vime.data.dataset import load_rows, to_prompt
from vime.types import Group

ANSWER = call("answer", model="dear")


def write(path: Path, questions: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in questions))
    return path


def test_wishes_of_training_and_evaluation_differ_and_their_weights_are_preferences():
    texts = {split: {wish.text for wish in wishes} for split, wishes in WISHES.items()}
    assert len(texts["train"]) > 5 and len(texts["eval"]) > 5 and not texts["train"] & texts["eval"]
    vectors = [wish.fields()["preference"] for wishes in WISHES.values() for wish in wishes]
    assert all(Preference(**vector).accuracy == 1.0 for vector in vectors)
    assert len({json.dumps(vector) for vector in vectors}) > 10


def test_a_data_set_with_wishes_has_its_own_questions_and_several_vectors(tmp_path: Path):
    file = write(tmp_path / "frames.jsonl", [{"question": f"What is {i}?", "answer": str(i)} for i in range(40)])
    dataset = DatasetConfig(
        name="frames",
        generator="agentic.toolorchestra.preferences.rows",
        generator_args={"source": {"path": str(file)}},
        num_items=30,
    )
    found = load_rows(dataset)
    assert [row["question"] for row in found] == [f"What is {i}?" for i in range(30)]
    assert {row["preference_instruction"] for row in found} <= {wish.text for wish in WISHES["eval"]}
    assert len({json.dumps(row["preference"]) for row in found}) > 3
    assert found == rows(num_items=30, seed=dataset.seed, source={"path": str(file)})


def test_training_rows_get_a_wish_unless_they_have_a_vector(tmp_path: Path):
    own = {"accuracy": 1.0, "cost": 0.25}
    file = write(
        tmp_path / "train.jsonl",
        [
            {"problem": "1?", "answer": "1", "category": "qa", "preference": own},
            {"problem": "2?", "answer": "2", "category": "qa"},
        ],
    )
    plain = training_data.rows(num_items=9, seed=0, file=str(file))
    wished = {row["problem"]: row for row in training_data.rows(num_items=9, seed=0, file=str(file), preferences=True)}
    assert "preference" not in next(row for row in plain if row["problem"] == "2?")
    assert wished["1?"]["preference"] == own and "preference_instruction" not in wished["1?"]
    prompt = to_prompt(wished["2?"], index=0, row_number=0, dataset="train")
    vector = preference_of(None, Group(prompt=prompt, rollouts=[]))  # type: ignore[arg-type]
    assert vector == Preference(**wished["2?"]["preference"])


async def test_the_orchestrator_reads_the_wish_and_the_question_stays_what_it_is():
    actor, large = script(ANSWER), Server(expert)
    sample = question()
    sample.metadata["preference_instruction"] = "Keep it cheap."
    (found,) = await play(context_of(actor, Server(expert), large), sample)
    assert "What the user prefers: Keep it cheap." in actor.prompts[0]
    assert "Keep it cheap." not in large.prompts[0] and "cheap." not in found.metadata["question"]
    plain = script(ANSWER)
    await play(context_of(plain, Server(expert), Server(expert)), question())
    assert "What the user prefers" not in plain.prompts[0]


async def test_in_a_conversation_the_wish_stands_with_the_policy():
    (row,) = generate_tasks(num_items=1, seed=0)
    actor = script("Bye.<|im_end|>", "Bye.<|im_end|>")
    sample = task_sample(row["task"], row["prompt"])
    sample.metadata["preference_instruction"] = "Be quick."
    await play(context_of(actor, Server(expert), Server(expert), limits=LimitsConfig(context_tokens=8192, turns=2)), sample)
    assert "What the user prefers: Be quick." in actor.prompts[0]


def item(index: int, *, strict: float, dollars: float, alias: str, wish: dict[str, Any]) -> dict[str, Any]:
    metadata = {"preference": wish, "dollars": dollars, "seconds": 2.0, "expert_calls": [{"alias": alias}]}
    return {"dataset": "hle", "index": index, "strict": strict, "samples": [{"metadata": metadata}]}


def test_the_score_compares_with_the_untrained_model_on_the_same_task():
    cheap, named = {"accuracy": 1.0, "cost": 0.5}, {"accuracy": 1.0, "tools": {"answer-3": 0.7}}
    base = [
        item(0, strict=0.0, dollars=0.08, alias="answer-1", wish=cheap),
        item(1, strict=1.0, dollars=0.08, alias="answer-1", wish=named),
    ]
    ours = [
        item(1, strict=1.0, dollars=0.08, alias="answer-3", wish=named),
        item(0, strict=1.0, dollars=0.02, alias="answer-1", wish=cheap),
    ]
    assert mean_score(base, ours) == pytest.approx(100 * ((1.0 + 0.5 * 8 / 2) + (1.0 + 0.7)) / 2)
    assert mean_score(base, base) == pytest.approx(100 * ((0.0 + 0.5) + 1.0) / 2)
