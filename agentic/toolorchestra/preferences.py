"""Preferences of users, as a sentence that the orchestrator reads and as weights for the reward (arXiv 2511.21689, section 3.2).

The authors let a model write pairs of instruction and vector, and have not published them; these are our own. Those for training
and for evaluation differ. Tools are named by the aliases of conf/preset/toolorchestra/qwen3-8b.yaml; the weight of an expert
that is not offered has no effect.
"""

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from agentic.toolorchestra.rewards import Features, Preference, features_of_metadata, preference_score
from vime.config import DatasetConfig
from vime.data.dataset import load_rows
from vime.data.split import Split

INSTRUCTION, VECTOR = "preference_instruction", "preference"
"""Fields of a row."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wish:
    """A sentence and its weights. Example: `Wish(text="Keep it cheap.", cost=1.0)`."""

    text: str
    accuracy: float = 1.0
    cost: float = 0.0
    latency: float = 0.0
    tools: dict[str, float] = field(default_factory=dict)

    def fields(self) -> dict[str, Any]:
        """The fields of a row."""
        weights = {"accuracy": self.accuracy, "cost": self.cost, "latency": self.latency, "tools": dict(self.tools)}
        return {INSTRUCTION: self.text, VECTOR: weights}


WISHES: dict[Split, tuple[Wish, ...]] = {
    "train": (
        Wish(text="I pay for every call myself, so spend as little as possible.", cost=1.0),
        Wish(text="I am in a hurry: the answer is needed at once.", latency=1.0),
        Wish(text="Only a correct answer counts; neither money nor time matters."),
        Wish(text="A modest price matters to me, and so does a short wait.", cost=0.5, latency=0.5),
        Wish(text="Look things up with search-3 where you can.", tools={"search-3": 0.8}),
        Wish(text="I trust the programs of reasoner-2 more than any other.", tools={"reasoner-2": 0.8}),
        Wish(text="Let answer-math-2 answer if it can, and keep the bill small.", cost=0.6, tools={"answer-math-2": 0.6}),
    ),
    "eval": (
        Wish(text="My budget is tight; prefer what costs little.", cost=0.9),
        Wish(text="Please answer fast, even if it costs more.", latency=0.9),
        Wish(text="I want the right answer, whatever it takes."),
        Wish(text="Do not keep me waiting, and do not waste money either.", cost=0.6, latency=0.6),
        Wish(text="Searches should be written by search-1.", tools={"search-1": 0.7}),
        Wish(text="Let answer-3 give the answer where possible.", tools={"answer-3": 0.7}),
        Wish(text="Compute with reasoner-3, and be quick.", latency=0.4, tools={"reasoner-3": 0.7}),
    ),
}


def with_wishes(rows: Sequence[dict[str, Any]], *, split: Split, seed: int) -> list[dict[str, Any]]:
    """The rows, each with a wish of the split drawn with the seed."""
    rng = random.Random(f"{split}/{seed}/wishes")
    return [{**row, **rng.choice(WISHES[split]).fields()} for row in rows]


def rows(*, num_items: int | None, seed: int, source: dict[str, Any], split: Split = "eval") -> list[dict[str, Any]]:
    """The rows of another data set, each with a wish, for `data.*.generator`.

    `source` holds the fields of the data set, for example `{path: data/frames.jsonl}`.
    """
    found = load_rows(DatasetConfig(**{"num_items": num_items, "seed": seed, **source}), key="data.evaluation")
    return with_wishes(found[:num_items], split=split, seed=seed)


def mean_score(base: list[dict[str, Any]], items: list[dict[str, Any]]) -> float:
    """The preference score of appendix L in percent: the mean over tasks of the score relative to the base model's rollout.

    Both are items of the same evaluation; the n-th run of a task is compared with the n-th run of the base model.
    """
    waiting: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for item in base:
        waiting[item["dataset"], item["index"]].append(item)
    scores = []
    for item in items:
        other = waiting[item["dataset"], item["index"]].pop(0)
        weights = _metadata(item).get(VECTOR) or {}
        scores.append(preference_score(_features(item), _features(other), Preference(**weights)))
    return 100 * fmean(scores)


def _features(item: dict[str, Any]) -> Features:
    return features_of_metadata(_metadata(item), correct=item["strict"] > 0)


def _metadata(item: dict[str, Any]) -> dict[str, Any]:
    return item["samples"][-1]["metadata"] if item["samples"] else {}
