"""reasoning-gym's suite: its tasks in turn, with gold answers and wrong ones. The package may be missing."""

import importlib.util
from collections import Counter
from typing import Any

import pytest

from agentic.benchmarks.puzzles import ReasoningGymSuite
from tests.environments.test_reasoning_gym import NO_SOLUTIONS, all_tasks
from vime.environments.environment import Outcome, Reply
from vime.errors import ConfigError

there = pytest.mark.skipif(importlib.util.find_spec("reasoning_gym") is None, reason="reasoning-gym is not installed")


def scored(suite: ReasoningGymSuite, row: dict[str, Any], text: str) -> Outcome:
    episode = suite.open(row)
    assert episode.observe() is not None
    episode.act(Reply(seat="agent", text=text))
    return episode.outcome()


@there
def test_tasks_take_turns_and_gold_answers_score_1():
    suite = ReasoningGymSuite(tasks=["chain_sum", "gcd", "spell_backward"])
    found = list(suite.rows(split="eval", num_items=8, seed=0))
    assert Counter(row["task"] for row in found) == {"chain_sum": 3, "gcd": 3, "spell_backward": 2}
    assert [scored(suite, row, f"<answer>{row['answer']}</answer>").rewards for row in found] == [1.0] * 8
    assert all(float(scored(suite, row, "<answer>?</answer>").rewards or 0) < 0.5 for row in found)  # type: ignore[arg-type]


@there
def test_a_base_model_continues_examples_of_the_same_task():
    suite = ReasoningGymSuite(tasks=["gcd"], examples=2)
    (row,) = suite.rows(split="eval", num_items=1, seed=0)
    seen = suite.open(row).observe()
    assert seen is not None and isinstance(seen.content, str) and seen.content.count("Question:") == 3


@there
def test_an_unknown_task_is_refused():
    with pytest.raises(ConfigError, match="no such task"):
        ReasoningGymSuite(tasks=["chess"])


@pytest.mark.slow
@there
def test_gold_answers_of_the_whole_suite_score_1():
    suite = ReasoningGymSuite()
    assert suite.tasks == all_tasks()
    found = list(suite.rows(split="eval", num_items=None, seed=0))
    assert [row["task"] for row in found] == suite.tasks
    gold = {row["task"]: scored(suite, row, f"<answer>{row['answer']}</answer>").rewards for row in found}
    assert {task for task, score in gold.items() if score != 1} == NO_SOLUTIONS
