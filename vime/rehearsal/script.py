"""Scripted replies of models: `Rehearsal`, which a method names by `method.rehearsal`, and scripts of a trial without servers.

A random model never calls a tool and never finds an answer. A method's rehearsal says for each call of a model what the reply is,
so that every tool, expert, judge and stop reason occurs; the server then samples exactly these tokens, with the logprobs that the
random model gives them (`vime.inside_vllm.forced_tokens`).
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from vime.config import RunConfig
from vime.data.dataset import load_rows, to_prompt
from vime.errors import ConfigError, Problem
from vime.hooks import load_hook
from vime.model.load_tokenizer import load_tokenizer
from vime.trajectory.messages import ASSISTANT
from vime.trajectory.template import ChatTemplate
from vime.types import Sample

Row = dict[str, Any]
REPLY_KEYS = ("text", "tool_calls", "model", "cut", "error")
"""Fields of a line of `trial.replies`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """One call of a model.

    Example: `Asked(model="actor", prompt="<|im_start|>user\\n2+2?…", session="train-0-1-ab12-0", turn=0, max_tokens=1024)`.
    """

    model: str
    """Name of the served model that is asked."""
    prompt: str
    """The whole prompt of the call, with control tokens."""
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
class ScriptedReply:
    """A reply of the script. Example: `ScriptedReply(text="<search> Oslo </search>")`."""

    text: str
    cut: bool = False
    """True if the reply is cut off at its end, as if it had reached its token limit."""
    seconds: float = 0.0
    """Simulated seconds of the reply, which the agent's clock counts."""
    error: str = ""
    """The error with which the call fails, in place of a reply."""


class Rehearsal:
    """The rehearsal of a method, which overrides the parts that it needs. Each rollout worker makes one with the
    configuration."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self._acts: dict[str, str] = {}
        self._num_acts: Counter[Sequence[str]] = Counter()
        self._gold: dict[str, list[str]] | None = None

    @classmethod
    def files(cls, config: RunConfig) -> dict[str, list[Row]]:
        """Two rows for each data file of the configuration, by the name of the file, in its published or prepared layout.

        They replace files that are not on this machine. By default they are questions with answers.
        """
        paths = [Path(dataset.path).name for dataset in (config.data.train, *config.data.evaluation) if dataset.path]
        return {name: [{"question": f"{name}: {n} + 4 ?", "answer": str(n + 4)} for n in (2, 3)] for name in paths}

    @classmethod
    def adapt(cls, config: RunConfig) -> list[str]:
        """Replaces parts of the configuration that are not available here, for example a package; returns a text on each."""
        return []

    def reply(self, asked: Asked) -> ScriptedReply | None:
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
        """The part that this attempt at a rollout plays; attempts take the parts in `acts` round-robin."""
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


class WrittenScript(Rehearsal):
    """The replies of a file (`trial.replies`): each call of a model takes its next line."""

    def __init__(self, config: RunConfig) -> None:
        """Raises ConfigError for a file that cannot be read."""
        super().__init__(config)
        assert config.trial.replies is not None
        self._rows = read_replies(config)
        self._num_asked: Counter[str] = Counter()

    def reply(self, asked: Asked) -> ScriptedReply:
        """The model's next line."""
        rows = [row for row in self._rows if row["model"] == asked.model]
        number, self._num_asked[asked.model] = self._num_asked[asked.model], self._num_asked[asked.model] + 1
        if number >= len(rows):
            found = f"{len(rows)} {'reply' if len(rows) == 1 else 'replies'}"
            return ScriptedReply(
                text="", error=f"trial.replies={self.config.trial.replies} has {found} of {asked.model}: add one more"
            )
        row = rows[number]
        text = row.get("text") or ""
        return ScriptedReply(text=text + self._written(asked.model, row), cut=row.get("cut", False), error=row.get("error", ""))

    def _written(self, name: str, row: Row) -> str:
        """The calls of a line as the model's chat template writes them."""
        if not row.get("tool_calls"):
            return ""
        served = self.config.serving.models[name]
        tokenizer = load_tokenizer(served.checkpoint or self.config.model.checkpoint)
        arguments = self.config.model.chat_template_args if served.trained else served.chat_template_args
        calls = [{"id": f"call{n:05}", "type": "function", "function": call} for n, call in enumerate(row["tool_calls"])]
        message = {"role": ASSISTANT, "content": "", "tool_calls": calls}
        return ChatTemplate(tokenizer, arguments).reply([{"role": "user", "content": "?"}], message, None)


class DemonstratedScript(Rehearsal):
    """The trained spans of a method's demonstrations as replies of the trained model, in their order."""

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        assert config.data.demonstrations is not None
        tokenizer = load_tokenizer(config.model.checkpoint)
        make, trainer = load_hook(config.data.demonstrations), config.trainer
        samples = make(tokenizer, 0, trainer.num_steps, trainer.sft_tokens_per_step, config.seed)
        self._texts = [tokenizer.decode(ids, skip_special_tokens=True) for sample in samples for ids in _spans(sample)]
        self._num_asked = 0

    def reply(self, asked: Asked) -> ScriptedReply | None:
        """The next span, and after the last one the first; None for other models."""
        if asked.model != "actor" or not self._texts:
            return None
        self._num_asked += 1
        return ScriptedReply(text=self._texts[(self._num_asked - 1) % len(self._texts)])


def read_replies(config: RunConfig) -> list[Row]:
    """The lines of `trial.replies`, each with its model. Raises ConfigError that names the line that is wrong."""
    path = config.trial.replies
    assert path is not None
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise _unread(path, f"cannot be read ({error}); give a file of JSON lines") from error
    return [_reply_row(config, number, line) for number, line in enumerate(lines, start=1) if line.strip()]


def _reply_row(config: RunConfig, number: int, line: str) -> Row:
    """A line of `trial.replies` as an object with its model."""
    try:
        row = json.loads(line)
    except ValueError:
        row = None
    row = {"text": row} if isinstance(row, str) else row
    unknown = sorted(row.keys() - REPLY_KEYS) if isinstance(row, dict) else []
    if not isinstance(row, dict) or unknown or not row.keys() & {"text", "tool_calls", "error"}:
        wrong = f"has the unknown field {', '.join(unknown)}" if unknown else "is no reply"
        form = f"a reply is a JSON string or an object of {', '.join(REPLY_KEYS)}, with a text, calls or an error"
        raise _unread(config.trial.replies, f"line {number} {wrong}: {form}")
    row = {"model": "actor", **row}
    if row["model"] not in config.serving.models:
        served = ", ".join(config.serving.models)
        raise _unread(config.trial.replies, f"line {number} is of the model {row['model']}; served are {served}")
    return row


def _unread(path: str | None, remedy: str) -> ConfigError:
    return ConfigError([Problem(key="trial.replies", value=path, remedy=remedy)])


def script_of(config: RunConfig) -> Rehearsal | None:
    """The script of a trial without servers: its file, the method's rehearsal or its demonstrations; None without any."""
    if config.trial.replies is not None:
        return WrittenScript(config)
    if config.method.rehearsal:
        return load_hook(config.method.rehearsal)(config)
    return DemonstratedScript(config) if config.data.demonstrations else None


def _spans(sample: Sample) -> Iterable[list[int]]:
    """Runs of trained tokens of a sequence."""
    response = list(sample.tokens)[-len(sample.loss_mask) :] if len(sample.loss_mask) else []
    for is_trained, run in groupby(zip(response, sample.loss_mask, strict=True), key=lambda pair: pair[1]):
        if is_trained:
            yield [token for token, _ in run]
