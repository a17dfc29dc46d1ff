"""A stream of training prompts that seldom repeats those which teach nothing: solved every time, or never.

    python -m vime.run +method=memagent data.source=vime.data.curriculum.Curriculum data.curriculum.solved_rate=0.1

Every row is in one of four pools, by the mean reward of its last group: unseen, in play, solved, hopeless. An epoch has all rows
that are unseen or in play, and a share of each of the other two pools, drawn anew in each epoch, so that a row comes back to play
when the model has forgotten or learned it (compare the prioritized sampling of Kimi k1.5, arXiv 2501.12599).
"""

import random
from collections import Counter
from enum import Enum
from statistics import fmean
from typing import Any

from vime.config import RunConfig
from vime.data.source import RowSource
from vime.types import Group, Prompt


class Pool(Enum):
    """The pool of a row."""

    unseen = "unseen"
    in_play = "in play"
    solved = "solved"
    hopeless = "hopeless"


class Curriculum(RowSource):
    """The rows of `data.train`, those of the pools `solved` and `hopeless` at rates of their own (`data.curriculum`).

    Which rows an epoch has depends on the groups that have finished by then; its order is that of `RowSource`.
    """

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self._limits = config.data.curriculum
        self._rates = {Pool.solved: self._limits.solved_rate, Pool.hopeless: self._limits.hopeless_rate}
        self._means: dict[int, float] = {}
        """Mean reward of the last group of each row."""
        self._sizes = Counter[Pool]()
        self._num_drawn = 0

    def next(self) -> Prompt:
        """The next prompt that is due; of as many rows as an epoch has, the last one if none is."""
        row = None
        for _ in range(len(self)):
            row = self._next_row()
            self._position += 1
            if self._is_due(row):
                break
        assert row is not None, "a data set without rows is refused"
        prompt = self._prompt(row, index=self._num_drawn)
        self._num_drawn += 1
        return prompt

    def seen(self, group: Group) -> None:
        """Moves the row of a finished group to the pool of its mean reward; a group without a reward says nothing."""
        rewards = [rollout.reward for rollout in group.rollouts if rollout.counting.in_baseline]
        if not rewards:
            return
        row = group.prompt.row
        if row in self._means:
            self._sizes[self._pool(row)] -= 1
        self._means[row] = fmean(rewards)
        self._sizes[self._pool(row)] += 1

    def metrics(self) -> dict[str, float]:
        """The share of the rows in each pool: `data/unseen_share`, `data/in_play_share`, …"""
        sizes = self._sizes | Counter({Pool.unseen: len(self) - len(self._means)})
        return {f"data/{pool.name}_share": sizes[pool] / len(self) for pool in Pool}

    def state(self) -> dict[str, Any]:
        """The position in the order of all rows, the number of prompts drawn, and the last mean of each row."""
        return super().state() | {"num_drawn": self._num_drawn, "means": [[row, mean] for row, mean in self._means.items()]}

    def load(self, state: dict[str, Any]) -> None:
        """Continues where `state` was taken, also where the run before had another source. Raises what `check` raises."""
        super().load(state)
        self._num_drawn = state.get("num_drawn", state["position"])
        self._means = {row: mean for row, mean in state.get("means", [])}
        self._sizes = Counter(self._pool(row) for row in self._means)

    def _pool(self, row: int) -> Pool:
        if (mean := self._means.get(row)) is None:
            return Pool.unseen
        if mean >= self._limits.solved_at:
            return Pool.solved
        return Pool.hopeless if mean <= self._limits.hopeless_at else Pool.in_play

    def _is_due(self, row: int) -> bool:
        return random.Random(f"{self._seed}/{self._epoch}/{row}").random() < self._rates.get(self._pool(row), 1.0)
