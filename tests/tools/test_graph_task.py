"""The questions of the agent in LangGraph, and what is counted of its training."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.append(str(Path(__file__).parents[2] / "tools"))

from graph_task import reward, rows
from train_library_agent import summary

from vime.types import Sample


def test_only_the_senior_expert_knows_and_a_price_must_be_searched_first():
    found = rows(split="train", num_items=200, seed=0)
    assert rows(split="train", num_items=200, seed=0) == found
    for row in found:
        answer, world = row["answers"][0], row["world"]
        is_price = "price" in row["question"]
        assert world["senior after a search"] == answer and (answer in world["passage"]) == is_price
        assert world["junior"] == world["junior after a search"]
        assert is_price or world["senior"] == answer
    prices = [row for row in found if "price" in row["question"]]
    for name in ("junior", "senior"):
        assert sum(row["world"][name] == row["answers"][0] for row in prices) < 0.4 * len(prices)


async def test_the_reward_is_for_what_the_program_has_printed():
    for output, score in (("7\n", 1.0), ("17", 0.0), ("", 0.0)):
        assert await reward(SimpleNamespace(), [Sample(label=["7"], metadata={"output": output})]) == score


def test_a_token_that_is_missing_from_training_is_a_mistake_of_its_rollout():
    def rollout(received: int) -> dict[str, Any]:
        turns = [
            {"kind": "prompt", "num_tokens": 9},
            {"kind": "reply", "num_tokens": 4},
            {"kind": "environment", "num_tokens": 2},
        ]
        counts = {"session_delivered_tokens": received, "session_calls": 2}
        samples = [{"turns": [*turns, {"kind": "reply", "num_tokens": 3}]}]
        return {"reward": 1.0, "status": "completed", "counts": counts, "samples": samples}

    found = summary(1, [rollout(7), rollout(7)])
    assert (found["replies"], found["calls"], found["received_tokens"], found["trained_tokens"]) == (4, 4, 14, 14)
    assert found["mistakes"] == 0 and summary(1, [rollout(7), rollout(8)])["mistakes"] == 1
