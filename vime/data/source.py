"""The endless stream of training prompts, which is reshuffled every epoch and restored from one number."""

import random
from collections.abc import Iterator
from typing import Any

from vime.config import RunConfig
from vime.data.rows import check_rows, load_rows, to_prompt
from vime.types import Prompt


class RowSource:
    """Prompts of `data.train` in the order of a permutation that seed and epoch determine.

    The n-th prompt of a run is the same however often the run was interrupted.
    """

    def __init__(self, config: RunConfig) -> None:
        """Raises `ConfigError` if any row has no usable question."""
        self._dataset = config.data.train
        self._rows = load_rows(config.data.train)
        check_rows(self._rows, config.data.train)
        self._seed = config.seed
        self._shuffle = config.data.shuffle
        self._position = 0
        self._epoch = -1
        self._order: list[int] = []

    def __len__(self) -> int:
        return len(self._rows)

    def prompts(self) -> Iterator[Prompt]:
        """Every prompt once, in the order of the rows."""
        for number, row in enumerate(self._rows):
            yield to_prompt(row, index=number, row_number=number, dataset=self._dataset.name)

    def next(self) -> Prompt:
        """The next prompt; `index` counts from 0 over the whole run."""
        epoch, offset = divmod(self._position, len(self._rows))
        if epoch != self._epoch:
            self._epoch, self._order = epoch, list(range(len(self._rows)))
            if self._shuffle:
                random.Random(f"{self._seed}/{epoch}").shuffle(self._order)
        row_number = self._order[offset]
        prompt = to_prompt(self._rows[row_number], index=self._position, row_number=row_number, dataset=self._dataset.name)
        self._position += 1
        return prompt

    def state(self) -> dict[str, Any]:
        """The state from which `load` continues with the same prompt."""
        return {"position": self._position}

    def load(self, state: dict[str, Any]) -> None:
        """Continues where `state` was taken."""
        self._position = state["position"]
