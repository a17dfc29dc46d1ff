"""The output of `mode=try`: the prompt, every call of a model as soon as it is answered, and how the rollout ended."""

import logging
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console as RichConsole
from rich.text import Text

from vime.blame import is_users
from vime.config import RunConfig, TrialEngine
from vime.files.record import Recorder
from vime.report.console import LOG_WIDTH
from vime.report.logs import log_to_file
from vime.types import Group, Prompt, Rollout, Turn

SHOWN_CHARACTERS = 2000
"""Characters shown of one text; the middle of a longer one is left out."""
SAID_ANYWAY = ("vime.workers.isolation", "vime.workers.group_hooks")
"""Loggers whose messages the end of the transcript repeats anyway."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownCall:
    """A call of a model and its answer.

    Example: `ShownCall(model="actor", prompt="<|im_start|>user…", reply="4<|im_end|>", turn=Turn(…), num_prompt_tokens=12)`.
    """

    model: str
    prompt: str
    """The part of the prompt that is new since the previous call, with its control tokens."""
    reply: str
    turn: Turn
    num_prompt_tokens: int | None
    """Number of prompt tokens; None behind a chat API, whose tokens are not known."""
    num_known_tokens: int = 0
    """Tokens at the beginning of the prompt that were those of the call before."""


class Transcript:
    """The screen of one try, a context manager; it also shows log messages of hooks, from INFO on, and vime's warnings."""

    def __init__(self, config: RunConfig, path: Path, *, rich: RichConsole | None = None) -> None:
        self._rich = rich or RichConsole(highlight=False, width=None if sys.stdout.isatty() else LOG_WIDTH)
        self._config, self._path = config, path
        self._num_calls, self._started = 0, time.monotonic()
        self._handlers: list[logging.Handler] = []

    def __enter__(self) -> "Transcript":
        model = self._config.model
        engine = "scripted replies" if self._config.trial.engine is TrialEngine.scripted else model.checkpoint
        self._line(f"try: one prompt on {model.name} ({engine}), without a trainer")
        self._line(f"  folder  {self._path}", "dim")
        screen = logging.StreamHandler(sys.stderr)
        screen.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        screen.addFilter(_is_for_the_screen)
        logging.getLogger().addHandler(screen)
        self._handlers = [screen, log_to_file(self._path / "logs" / "driver.log")]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        for handler in self._handlers:
            logging.getLogger().removeHandler(handler)
            handler.close()

    def say(self, text: str) -> None:
        """One line about the start."""
        self._line(f"  {time.monotonic() - self._started:6.1f} s  {text}", "dim")

    def prompt(self, prompt: Prompt) -> None:
        """Shows the agent's input."""
        self._head(f"prompt: row {prompt.row} of {prompt.dataset}")
        for message in prompt.messages:
            self._text(f"{message.get('role', '')}: {message.get('content', '')}")
        self._line(f"answer: {_shortened(str(prompt.ground_truth))}")

    def call(self, call: ShownCall) -> None:
        """A call of a model that was answered just now."""
        self._num_calls += 1
        read, written = call.num_prompt_tokens, len(call.turn.output_ids)
        if read is None:
            read, written = call.turn.usage or (0, 0)
        seconds = f"{call.turn.seconds:.1f} s"
        self._head(f"call {self._num_calls}: {call.model}, {read} tokens read, {written} sampled, {seconds}, {_end(call.turn)}")
        if call.num_known_tokens:
            self._line(f"  … {call.num_known_tokens} tokens as in the call before, then:", "dim")
        self._text(call.prompt, "cyan")
        self._line("reply:", "dim")
        self._text(call.reply, "green")

    def end(self, group: Group, recorder: Recorder) -> None:
        """Shows how the rollout ended, the tokens that would be trained, and its reward."""
        for rollout in group.rollouts:
            reason = rollout.stop_reason.value
            self._head(
                f"{'end' if rollout.counting.in_baseline else 'FAILED'}: {reason} after {rollout.generation_seconds:.1f} s"
            )
            for span in rollout.spans:
                if span.kind not in ("generation", "queue", "reward"):
                    self._line(f"{span.kind} {span.name}: {span.seconds:.1f} s{_details(span.details)}")
            if rollout.counts:
                self._line("counts: " + ", ".join(f"{name} {count}" for name, count in sorted(rollout.counts.items())))
            self._samples(rollout, recorder)
            self._said(rollout)
            if rollout.counting.in_baseline:
                self._line(f"reward: {rollout.reward:g}{_details(rollout.metrics)}", "bold")
            if rollout.error:
                self._line(f"error: {rollout.error}", "red")
            if rollout.traceback:
                self._line(rollout.traceback, "red")
        if self._num_calls == 0:
            num_refused = sum(rollout.counts.get("session_refused", 0) for rollout in group.rollouts)
            self._line(f"all {num_refused} calls of models were refused" if num_refused else "no model was called")

    def file(self, path: Path) -> None:
        """Shows where the rollout was written."""
        self._line(f"rollout {path}\nlogs    {self._path / 'logs'}", "dim")

    def _samples(self, rollout: Rollout, recorder: Recorder) -> None:
        for number, sample in enumerate(rollout.samples, start=1):
            row = recorder.row(sample)
            pieces = " + ".join(f"{turn['kind']} {turn['num_tokens']}" for turn in row["turns"])
            told = "" if sample.reward is None or sample.reward == rollout.reward else f", reward {sample.reward:g}"
            left_out = ", not trained (remove_sample)" if sample.remove_sample else ""
            self._line(f"sequence {number}: {pieces} tokens, of which the replies are trained{told}{left_out}")

    def _said(self, rollout: Rollout) -> None:
        """The value that an agent returned, or the text that it printed if it is a program."""
        for name in ("output", "stderr"):
            text = rollout.samples[-1].metadata.get(name) if rollout.samples else None
            if isinstance(text, str) and text.strip():
                self._line(f"{name} of the agent:", "dim")
                self._text(text.rstrip())

    def _head(self, text: str) -> None:
        self._line(f"\n── {text}", "bold")

    def _text(self, text: str, style: str = "") -> None:
        for line in _shortened(text).splitlines() or [""]:
            self._line(f"  {line}", style)

    def _line(self, text: str, style: str = "") -> None:
        self._rich.print(Text(text, style=style), soft_wrap=True)


def _is_for_the_screen(record: logging.LogRecord) -> bool:
    least = logging.INFO if is_users(record.pathname) else logging.WARNING
    return record.levelno >= least and record.name not in SAID_ANYWAY


def _end(turn: Turn) -> str:
    return "cut at its limit" if turn.finish_reason == "length" else f"ended by {turn.finish_reason or 'nothing'}"


def _details(values: Mapping[str, Any]) -> str:
    shown = ", ".join(f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in values.items())
    return f" ({shown})" if shown else ""


def _shortened(text: str) -> str:
    if len(text) <= SHOWN_CHARACTERS:
        return text
    half = SHOWN_CHARACTERS // 2
    return f"{text[:half]}\n… {len(text) - 2 * half:,} characters …\n{text[-half:]}"
