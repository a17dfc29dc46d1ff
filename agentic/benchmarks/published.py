"""`Benchmark`: a published test set as an environment. Its items come from the published file, unchanged, or from the hub.

python -m vime.run +benchmark=gsm8k model=smollm2-135m
python -m vime.run +benchmark=gsm8k model=smollm2-135m method.settings.folder=~/sets data.evaluation.0.num_items=100
python -m vime.run +benchmark=gsm8k model=smollm2-135m method.settings.hub=true
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vime.config import DatasetConfig
from vime.data.dataset import HUB_FILE, load_rows
from vime.data.split import Split
from vime.environments.environment import Observation, Outcome, Reply, Row
from vime.errors import ConfigError, Problem, describe
from vime.rollout.context import Context
from vime.types import Message

Item = dict[str, Any]
"""A row of a published file."""
FOLDER, HUB = "method.settings.folder", "method.settings.hub"


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """The places of a benchmark's file.

    Example: `Source(files=("gsm8k.jsonl", "test.jsonl"), hub="openai/gsm8k/main/test-00000-of-00001.parquet", get="…")`.
    """

    files: tuple[str, ...]
    """Names under which the published file is looked for, in this order."""
    hub: str = ""
    """The file in a data set of Hugging Face's hub, `OWNER/NAME@REVISION/FILE`; "" if it is not there."""
    get: str
    """The way to get the file, as a command or sentence without its full stop."""

    def read(self, folder: str, *, hub: bool) -> list[Item]:
        """The rows of the file, unchanged. Raises ConfigError if it is not there or cannot be read as rows."""
        path = f"{HUB_FILE}{self.hub}" if hub else str(self._file(folder))
        try:
            return load_rows(DatasetConfig(path=path))
        except ConfigError as error:
            raise ConfigError([replace(problem, key=HUB if hub else FOLDER) for problem in error.problems]) from error

    def _file(self, folder: str) -> Path:
        places = [Path(folder).expanduser() / name for name in self.files]
        found = next((place for place in places if place.is_file()), None)
        if found is None:
            remedy = f"holds none of {', '.join(self.files)}: {self.get}, and put it there, or name its folder"
            remedy += ", or set method.settings.hub=true" if self.hub else ""
            raise ConfigError([Problem(key=FOLDER, value=str(Path(folder).expanduser().absolute()), remedy=remedy)])
        return found


class Benchmark:
    """A test set whose items are asked once; a subclass says what they are, how they are asked and how a reply is scored."""

    seats = ("agent",)
    step_seconds = 3600.0
    """A score may wait for a place to run a program, which is not the model's fault."""

    def items(self) -> Sequence[Item]:
        """All items. Raises ConfigError if their file is not there or has another layout."""
        raise NotImplementedError

    def asked(self, item: Item) -> list[Message] | str:
        """The prompt of an item: messages, or a text that a base model continues."""
        raise NotImplementedError

    def observation(self, item: Item) -> Observation:
        """The prompt with what belongs to it: tools, or texts that end the reply."""
        return Observation(content=self.asked(item))

    def answer(self, item: Item) -> str | None:
        """The reference answer of an item, for readers; None if it is no text."""
        return None

    async def score(self, reply: Reply, item: Item, context: Context) -> Outcome:
        """The score of a reply, with `strict` and `lenient` among the metrics."""
        raise NotImplementedError

    def rows(self, *, split: Split, num_items: int | None, seed: int) -> Iterable[Row]:
        """The items in their order, or `num_items` of them drawn with `seed`. Nothing here is for training."""
        return [self.row(item) for item in drawn(self.items(), num_items, seed)]

    def row(self, item: Item) -> Row:
        """The row of an item. Raises ConfigError if it has another layout than the published ones."""
        try:
            asked, answer = self.asked(item), self.answer(item)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            remedy = f"an item has another layout than the published ones ({describe(error)}): take the published file"
            raise ConfigError([Problem(key=FOLDER, value=str(item)[:100], remedy=remedy)]) from error
        return {"prompt": asked, "item": item} | ({} if answer is None else {"answer": answer})

    def open(self, row: Row, context: Context) -> "Asked":
        """The one question of a row."""
        return Asked(self, row["item"], context)


class PublishedBenchmark(Benchmark):
    """A benchmark with one published file, in `folder` or on the hub."""

    source: Source
    """The published file."""

    def __init__(self, *, folder: str = "data", hub: bool = False) -> None:
        self._folder, self._hub = folder, hub

    def items(self) -> Sequence[Item]:
        """The rows of the file, unchanged."""
        return self.source.read(self._folder, hub=self._hub)


class Asked:
    """An episode of one question."""

    def __init__(self, benchmark: Benchmark, item: Item, context: Context) -> None:
        self._benchmark, self._item, self._context = benchmark, item, context
        self._outcome: Outcome | None = None

    def observe(self) -> Observation | None:
        """The question, once."""
        return self._benchmark.observation(self._item) if self._outcome is None else None

    async def act(self, reply: Reply) -> None:
        """Takes the reply and scores it."""
        self._outcome = await self._benchmark.score(reply, self._item, self._context)

    def outcome(self) -> Outcome:
        """The score, 0 if there was no reply."""
        return self._outcome or Outcome(rewards=0.0, metrics={"strict": 0.0, "lenient": 0.0})


def drawn(items: Sequence[Item], num_items: int | None, seed: int) -> list[Item]:
    """All items, or `num_items` of them drawn with `seed`, in their order."""
    if num_items is None or num_items >= len(items):
        return list(items)
    return [items[place] for place in sorted(random.Random(seed).sample(range(len(items)), num_items))]


def text_of(item: Item, *names: str) -> str:
    """The text of the first of these fields that an item has. Raises KeyError if it has none."""
    for name in names:
        if isinstance(item.get(name), str):
            return item[name]
    raise KeyError(f"none of {', '.join(names)}")


def outcome(strict: float, lenient: float | None = None, **metrics: float) -> Outcome:
    """An outcome whose reward is the strict score."""
    return Outcome(rewards=strict, metrics={"strict": strict, "lenient": strict if lenient is None else lenient, **metrics})
