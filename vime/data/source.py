"""The endless stream of training prompts, which is reshuffled every epoch and restored from one number."""

import hashlib
import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from vime.config import DatasetConfig, RunConfig
from vime.data.dataset import FILES, NAME, check_rows, load_rows, to_prompt
from vime.errors import ConfigError, Problem, written
from vime.types import Prompt

REMEDY = "resume with what it has, or begin a new run from its weights (model.checkpoint=RUN/model)"
"""Remedy for a run that cannot be resumed with other prompts."""
NUM_NAMED = 10
"""Most names of data sets in a message."""


class RowSource:
    """Prompts of `data.train` in the order of a permutation that seed and epoch determine.

    The n-th prompt of a run is the same however often the run was interrupted. So the rows, and if they are shuffled the seed,
    are part of the state, and a state of others is refused.
    """

    def __init__(self, config: RunConfig) -> None:
        """Raises `ConfigError` if any row has no usable question, or a teacher teaches a data set that no row is of."""
        self._dataset = config.data.train
        self._rows = load_rows(config.data.train)
        check_rows(self._rows, config.data.train)
        _check_taught(config, names={self._name(row) for row in self._rows})
        self._key = "data.train"
        self._digest = ""
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
            yield to_prompt(row, index=number, row_number=number, dataset=self._name(row))

    def next(self) -> Prompt:
        """The next prompt; `index` counts from 0 over the whole run."""
        prompt = self._prompt(self._next_row(), index=self._position)
        self._position += 1
        return prompt

    def _next_row(self) -> int:
        """The number of the row at the present position."""
        epoch, offset = divmod(self._position, len(self._rows))
        if epoch != self._epoch:
            self._epoch, self._order = epoch, list(range(len(self._rows)))
            if self._shuffle:
                random.Random(f"{self._seed}/{epoch}").shuffle(self._order)
        return self._order[offset]

    def _prompt(self, row_number: int, *, index: int) -> Prompt:
        row = self._rows[row_number]
        return to_prompt(row, index=index, row_number=row_number, dataset=self._name(row))

    def _name(self, row: dict[str, Any]) -> str:
        """The data set of a row: the name in its field `dataset`, or that of all rows."""
        own = row.get("dataset")
        return own if isinstance(own, str) and NAME.fullmatch(own) else self._dataset.name

    def state(self) -> dict[str, Any]:
        """The state from which `load` continues with the same prompt."""
        return {"position": self._position, "rows": self.digest, "shuffle": self._shuffle, "seed": self._seed}

    def load(self, state: dict[str, Any]) -> None:
        """Continues where `state` was taken. Raises what `check` raises."""
        self.check(state)
        self._position = state["position"]

    def check(self, state: dict[str, Any]) -> None:
        """Raises `ConfigError` if `state` belongs to another order of prompts; some would be skipped and others repeated."""
        found = []
        if state.get("rows", self.digest) != self.digest:
            remedy = "its rows are not those of the checkpoint"
            found.append(Problem(key=f"{self._key}.path", value=self._dataset.path or self._dataset.generator, remedy=remedy))
        if (before := state.get("shuffle", self._shuffle)) != self._shuffle:
            found.append(Problem(key="data.shuffle", value=self._shuffle, remedy=f"the checkpoint has {written(before)}"))
        elif self._shuffle and (before := state.get("seed", self._seed)) != self._seed:
            found.append(Problem(key="seed", value=self._seed, remedy=f"the checkpoint has {before}"))
        if found:
            raise ConfigError([replace(problem, remedy=f"{problem.remedy}; {REMEDY}") for problem in found])

    @property
    def digest(self) -> str:
        """The digest of its rows."""
        if not self._digest:
            self._digest = digest_of(self._rows, self._dataset)
        return self._digest


def _check_taught(config: RunConfig, *, names: set[str]) -> None:
    found, known = list[Problem](), ", ".join(sorted(names)[:NUM_NAMED])
    for name, teacher in config.algorithm.distillation.teachers.items():
        if missing := ", ".join(each for each in teacher.datasets if each not in names):
            remedy = f"no row of data.train is of {missing}: use {known} (data.train.name, or a row's own field dataset)"
            key = f"algorithm.distillation.teachers.{name}.datasets"
            found.append(Problem(key=key, value=written(teacher.datasets), remedy=remedy))
    if found:
        raise ConfigError(found)


def digest_of(rows: Iterable[dict[str, Any]], dataset: DatasetConfig) -> str:
    """A digest of rows in their order; files that they name count by their paths below the folder of the data set."""
    digest, folder = hashlib.blake2b(digest_size=16), f"{Path(dataset.path or '').expanduser().parent}/"
    for row in rows:
        own = {name: value.removeprefix(folder) for name in FILES if isinstance(value := row.get(name), str)}
        digest.update(orjson.dumps(row | own, default=repr, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY))
    return digest.hexdigest()
