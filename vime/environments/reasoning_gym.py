"""Tasks of reasoning-gym: a question, one reply, and the score of the package's own scorer.

    +method=environment method.environment=reasoning_gym.chain_sum 'method.settings={max_terms: 2, examples: 3}'

A chat model is asked to give its answer between `<answer>` and `</answer>`. With `examples` the question is the end of a plain
text with solved ones before it, which a base model continues; its answer is all that it writes up to the stop text.
"""

import itertools
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any

from vime.data.split import Split
from vime.environments.environment import Observation, Outcome, Reply, Row, in_split, required
from vime.errors import ConfigError, Problem

REQUIREMENT = "reasoning-gym==0.1.25"
INSTRUCTION = "Think step by step. Then give the final answer, and nothing else, between <answer> and </answer>."
EXAMPLES_SEED = 2**20
"""Seed of the questions that are shown as examples; no row has it."""
TUPLE = "__tuple__"
"""Key of the one entry of a dictionary that stands for a tuple."""
CHUNK = 500
"""Size of a data set, the package's own default: some tasks prepare all entries at once, or refuse more."""


class ReasoningGym:
    """One task of the package with its arguments, for example `ReasoningGym("chain_sum", min_terms=2, max_terms=2)`."""

    seats = ("agent",)

    def __init__(self, task: str, /, *, examples: int = 0, instruction: str = INSTRUCTION, **arguments: Any) -> None:
        """Raises ConfigError for a task that there is not, arguments that it does not take, or if the package is missing."""
        try:
            self._package: Any = import_module("reasoning_gym")
        except ImportError as error:
            raise required(f"reasoning_gym.{task}", REQUIREMENT, error) from error
        known = self._package.factory.DATASETS
        if task not in known:
            remedy = f"reasoning-gym {self._package.__version__} has no such task: {', '.join(sorted(known))}"
            raise ConfigError([Problem(key="method.environment", value=f"reasoning_gym.{task}", remedy=remedy)])
        self.task, self.instruction = task, instruction
        self._arguments = arguments
        self._score: Any = self._package.get_score_answer_fn(task)
        try:
            self._package.create_dataset(task, size=1, **arguments)  # checks the arguments
            self.examples = list(itertools.islice(self._entries(EXAMPLES_SEED), examples))
        except (TypeError, ValueError, AssertionError, KeyError) as error:
            remedy = f"reasoning-gym's {task} does not take these arguments ({type(error).__name__}: {error})"
            raise ConfigError([Problem(key="method.settings", value=arguments, remedy=remedy)]) from error
        self.stop = ("\nQuestion:",) if any("\n" in str(entry["answer"]) for entry in self.examples) else ("\n",)

    def rows(self, *, split: Split, num_items: int, seed: int) -> Iterable[Row]:
        """Questions with the package's whole entry, from which its scorer judges."""
        shown = {entry["question"] for entry in self.examples}
        entries = (entry for entry in self._entries(seed) if entry["question"] not in shown)
        candidates = ({"question": e["question"], "answer": str(e["answer"]), "entry": _as_json(e)} for e in entries)
        return in_split(candidates, split=split, num_items=num_items)

    def open(self, row: Row) -> "Question":
        """The one question of a row."""
        return Question(self, row["entry"])

    def score(self, answer: str | None, entry: dict[str, Any]) -> float:
        """The package's score of an answer, from 0 to 1; `entry` is that of a row."""
        return float(self._score(answer, _from_json(entry)))

    def content(self, entry: dict[str, Any]) -> list[dict[str, Any]] | str:
        """The prompt: messages, or with examples a plain text."""
        if not self.examples:
            return [{"role": "system", "content": self.instruction}, {"role": "user", "content": entry["question"]}]
        solved = "".join(f"Question: {each['question']}\nAnswer: {each['answer']}\n\n" for each in self.examples)
        return f"{solved}Question: {entry['question']}\nAnswer:"

    def answer(self, reply: str) -> str | None:
        """The answer that a reply gives; None if it gives none."""
        if not self.examples:
            return self._package.utils.extract_answer(reply)
        for stop in self.stop:
            reply = reply.split(stop)[0]
        return reply.strip()

    def _entries(self, seed: int) -> Iterator[dict[str, Any]]:
        """Entries without end: a data set that begins where another ends continues it."""
        for first in itertools.count(seed, CHUNK):
            data = self._package.create_dataset(self.task, size=CHUNK, seed=first, **self._arguments)
            for place in range(CHUNK):
                yield data[place]


def _as_json(value: Any) -> Any:
    """An entry as JSON; scorers compare tuples, which JSON has not."""
    if isinstance(value, dict):
        return {key: _as_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_as_json(item) for item in value]
        return {TUPLE: items} if isinstance(value, tuple) else items
    return value


def _from_json(value: Any) -> Any:
    """The entry that `_as_json` wrote."""
    if isinstance(value, dict):
        if value.keys() == {TUPLE}:
            return tuple(_from_json(item) for item in value[TUPLE])
        return {key: _from_json(item) for key, item in value.items()}
    return [_from_json(item) for item in value] if isinstance(value, list) else value


class Question:
    """An episode of one reply."""

    def __init__(self, task: ReasoningGym, entry: dict[str, Any]) -> None:
        self._task, self._entry = task, entry
        self._answer: str | None = None
        self._is_over = False

    def observe(self) -> Observation | None:
        """The question, once."""
        if self._is_over:
            return None
        return Observation(content=self._task.content(self._entry), stop=self._task.stop if self._task.examples else ())

    def act(self, reply: Reply) -> None:
        """Takes the answer."""
        self._answer, self._is_over = self._task.answer(reply.text), True

    def outcome(self) -> Outcome:
        """The score; `strict` is 1 for a full one, `lenient` is the score itself."""
        score = self._task.score(self._answer, self._entry)
        given = float(bool(self._answer))
        return Outcome(rewards=score, metrics={"strict": float(score >= 1.0), "lenient": score, "answered": given})
