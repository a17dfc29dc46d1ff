"""Scripted replies of the models in a rehearsal: `Rehearsal`, of which a method may have one, named by `method.rehearsal`.

A random model never calls a tool and never finds an answer. A method's rehearsal says for each call of a model what the reply is,
so that every tool, expert, judge and stop reason occurs; the server then samples exactly these tokens, with the logprobs that the
random model gives them (`vime.inside_vllm.forced_tokens`).
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vime.config import RunConfig
from vime.data.rows import load_rows, to_prompt

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """One call of a model.

    Example: `Asked(model="actor", prompt="<|im_start|>user\\n2+2?…", session="train-0-1-ab12-0", turn=0, max_tokens=1024)`.
    """

    model: str
    """Name of the served model that is asked."""
    prompt: str
    """All of its prompt, with control tokens."""
    session: str
    """The attempt at a rollout that asks."""
    turn: int
    """The number of calls of any model that this attempt has made before."""
    max_tokens: int

    @property
    def dataset(self) -> str:
        """The data set of the rollout, with which the names of its attempts begin."""
        return self.session.rsplit("-", 4)[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """A reply of the script. Example: `Reply(text="<search> Oslo </search>")`."""

    text: str
    cut: bool = False
    """True if the reply is cut off at its end, as if it had reached its token limit."""
    seconds: float = 0.0
    """Seconds that the reply is said to have taken, which the agent's clock counts."""
    error: str = ""
    """The error with which the call fails, in place of a reply."""


class Rehearsal:
    """The rehearsal of a method; a method overrides what it needs. Each rollout worker has one, made with the configuration."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self._acts: dict[str, str] = {}
        self._num_acts: Counter[Sequence[str]] = Counter()
        self._gold: dict[str, list[str]] | None = None

    @classmethod
    def files(cls, config: RunConfig) -> dict[str, list[Row]]:
        """Two rows for each data file of the configuration, by the name of the file, in its published or prepared layout.

        They stand in for files that are not on this machine. By default they are questions with answers.
        """
        paths = [Path(dataset.path).name for dataset in (config.data.train, *config.data.evaluation) if dataset.path]
        return {name: [{"question": f"{name}: {n} + 4 ?", "answer": str(n + 4)} for n in (2, 3)] for name in paths}

    @classmethod
    def adapt(cls, config: RunConfig) -> list[str]:
        """Replaces in the configuration what cannot be had here, for example a package, and says so."""
        return []

    def reply(self, asked: Asked) -> Reply | None:
        """The reply to a call; None lets the random model sample."""
        return None

    def expected(self) -> dict[str, list[str]]:
        """Names that are to occur, by kind: `{"tool": ["search", "answer"], "stop reason": ["answered", …]}`."""
        return {}

    def occurred(self, rollout: Row) -> Iterable[tuple[str, str]]:
        """Names that occurred in a rollout besides its stop reason, each with its kind: (kind, name).

        The rollout is a row of `rollouts/` or of `evaluation/`: {"samples": [{"metadata": {…}}], "metrics": …, "counts": …}.
        """
        return ()

    def act(self, asked: Asked, acts: Sequence[str]) -> str:
        """The part that this attempt at a rollout plays: those of `acts` in turn, one attempt after another."""
        if asked.session not in self._acts:
            self._acts[asked.session] = acts[self._num_acts[tuple(acts)] % len(acts)]
            self._num_acts[tuple(acts)] += 1
        return self._acts[asked.session]

    def gold_of(self, text: str) -> str:
        """The reference answer to the question of a data set that a text contains; "unknown" if it contains none."""
        if self._gold is None:
            sets = [self.config.data.train, *self.config.data.evaluation]
            prompts = [
                to_prompt(row, index=0, row_number=0, dataset=dataset.name)
                for dataset in sets
                if dataset.path or dataset.generator
                for row in load_rows(dataset)
            ]
            self._gold = {prompt.question.strip(): prompt.ground_truth for prompt in prompts}
        asked = max((question for question in self._gold if question and question in text), key=len, default="")
        return (self._gold.get(asked) or ["unknown"])[0]
