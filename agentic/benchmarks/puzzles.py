"""reasoning-gym's suite (arXiv 2505.24760): questions of all of its tasks, the same number of each, scored by its own scorers.

`lenient` is the package's score, whose mean over tasks is the suite's, `strict` the share of full scores.
"""

from collections.abc import Iterable
from importlib import import_module
from itertools import islice
from typing import Any

from vime.data.split import Split
from vime.environments.environment import Row, load_environment, required
from vime.environments.reasoning_gym import REQUIREMENT, Question

NOT_ALONE = {"composite"}
"""A task made of others, which needs arguments."""


class ReasoningGymSuite:
    """Tasks of reasoning-gym at their own difficulty, for example `ReasoningGymSuite(tasks=["gcd", "lcm"], examples=3)`."""

    seats = ("agent",)

    def __init__(self, *, tasks: list[str] | None = None, **settings: Any) -> None:
        """`settings` are those of `reasoning_gym.TASK`: `examples`, `instruction`.

        Raises ConfigError for a task that there is not, or if the package is missing.
        """
        try:
            package: Any = import_module("reasoning_gym")
        except ImportError as error:
            raise required("reasoning_gym", REQUIREMENT, error) from error
        self.tasks = tasks or sorted(package.factory.DATASETS.keys() - NOT_ALONE)
        self._settings = settings
        if tasks:
            for task in tasks:
                self._of(task)

    def rows(self, *, split: Split, num_items: int | None, seed: int) -> Iterable[Row]:
        """The held-out questions of each task in turn: all first ones, then all second ones; one of each by default."""
        each = -(-(num_items or len(self.tasks)) // len(self.tasks))
        found = [list(islice(self._of(task).rows(split=split, num_items=each, seed=seed), each)) for task in self.tasks]
        rounds = range(max(map(len, found)))
        dealt = [(task, rows[n]) for n in rounds for task, rows in zip(self.tasks, found, strict=True) if n < len(rows)]
        return [{**row, "task": task} for task, row in dealt[:num_items]]

    def open(self, row: Row) -> Question:
        """The one question of a row."""
        return self._of(row["task"]).open(row)

    def _of(self, task: str) -> Any:
        return load_environment(f"reasoning_gym.{task}", self._settings)
