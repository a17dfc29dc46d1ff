"""All tasks of reasoning-gym: rows, splits and scores, without a server. The package may be missing."""

import importlib
import importlib.util
import json
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from vime.config import Mode, RunConfig
from vime.environments import reasoning_gym, textarena
from vime.environments.config import EnvironmentConfig
from vime.environments.environment import Reply, load_environment, rows
from vime.errors import ConfigError

NO_SOLUTIONS = {"graph_color", "propositional_logic", "boxnet", "rush_hour", "rubiks_cube"}
"""Tasks whose `answer` is no solution for their own scorer."""
NEEDS_ARGUMENTS = {"composite"}
IS_THERE = importlib.util.find_spec("reasoning_gym") is not None
there = pytest.mark.skipif(not IS_THERE, reason="reasoning-gym is not installed: pip install -e '.[environments]'")


@cache
def all_tasks() -> list[str]:
    return sorted(importlib.import_module("reasoning_gym").factory.DATASETS.keys() - NEEDS_ARGUMENTS)


def questions(task: str, split: Any, num_items: int) -> list[dict[str, Any]]:
    return rows(num_items, 0, environment=f"reasoning_gym.{task}", split=split)


@pytest.mark.slow
@there
def test_rows_of_all_tasks_are_json_in_one_split_and_scored_by_their_gold_answers():
    assert len(all_tasks()) >= 105
    unsolved = set[str]()
    for task in all_tasks():
        train, held_out = questions(task, "train", 3), questions(task, "eval", 1)
        assert train and held_out, task
        assert not {row["question"] for row in train} & {row["question"] for row in held_out}, task
        environment = load_environment(f"reasoning_gym.{task}", {})
        for row in [*train, *held_out]:
            read = json.loads(json.dumps(row))
            if environment.score(read["answer"], read["entry"]) < 1.0:
                unsolved.add(task)
    assert unsolved == NO_SOLUTIONS


@there
def test_a_chat_model_answers_between_tags():
    environment = load_environment("reasoning_gym.chain_sum", {"min_terms": 2, "max_terms": 2})
    (row,) = environment.rows(split="train", num_items=1, seed=3)
    for text, score, answered in ((f"so <answer>{row['answer']}</answer>", 1.0, 1.0), (row["answer"], 0.0, 0.0)):
        episode = environment.open(row)
        seen = episode.observe()
        assert seen is not None and [message["role"] for message in seen.content] == ["system", "user"]
        episode.act(Reply(seat="agent", text=text))
        assert episode.observe() is None
        outcome = episode.outcome()
        assert outcome.rewards == score
        assert outcome.metrics == {"strict": score, "lenient": score, "answered": answered}


@there
def test_a_base_model_continues_three_solved_examples():
    settings = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1, "examples": 3}
    environment = load_environment("reasoning_gym.chain_sum", settings)
    train, held_out = (list(environment.rows(split=split, num_items=1000, seed=0)) for split in ("train", "eval"))
    assert 0 < len(held_out) < len(train) < 1000, "there are few sums of two digits: rows are fewer than asked for"
    seen = environment.open(train[0]).observe()
    assert isinstance(seen.content, str) and seen.content.count("Question:") == 4
    assert seen.content.endswith("Answer:") and seen.stop == ("\n",)
    shown = {entry["question"] for entry in environment.examples}
    assert not shown & {row["question"] for row in train + held_out}
    assert environment.answer(" 7\nQuestion") == "7"


@there
@pytest.mark.parametrize(
    ("name", "settings", "key", "remedy"),
    [
        ("reasoning_gym.chain_sums", {}, "method.environment", "chain_sum"),
        ("reasoning_gym", {}, "method.settings", "task"),
        ("reasoning_gym.chain_sum", {"max_termz": 2, "examples": 1}, "method.settings", "max_termz"),
        ("reasoning_gym.chain_sum", {"min_terms": 5, "max_terms": 2}, "method.settings", "max_terms"),
    ],
)
def test_a_wrong_task_or_argument_is_a_problem_before_anything_starts(name: str, settings: Any, key: str, remedy: str):
    (problem,) = EnvironmentConfig(environment=name, settings=settings).problems(RunConfig())
    assert problem.key == key and remedy in problem.remedy


def test_without_the_package_the_remedy_is_its_installation(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "reasoning_gym", None)
    settings = {"examples": 0, "seed": 77}
    with pytest.raises(ConfigError, match=r"pip install 'reasoning-gym=="):
        load_environment("reasoning_gym.chain_sum", settings)
    method = EnvironmentConfig(environment="reasoning_gym.chain_sum", settings=settings)
    assert method.problems(RunConfig()) and not method.problems(RunConfig(mode=Mode.plan))


def test_the_remedies_name_the_versions_of_the_extra():
    extras = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras["environments"] == [reasoning_gym.REQUIREMENT, textarena.REQUIREMENT]
