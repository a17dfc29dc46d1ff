"""The end of a run that did not finish: the error, the last step and checkpoint, and the command that goes on (`ended.json`)."""

import json
import re
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path

from vime.config import Mode, RunConfig
from vime.errors import VimeError
from vime.files.command_line import command, setting
from vime.files.jsonl import write_text
from vime.files.provenance import override_without_secret, without_secret_text
from vime.run_checkpoints import CHECKPOINTS

ENDED = "ended.json"
INTERRUPTED = "interrupted"
_CHECKPOINT = re.compile(r"step_(\d+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunEnding:
    """The end of a run before its time.

    Example: `RunEnding(error="InfrastructureError", text="32 of 32 rollouts failed …", step=12, num_steps=60, checkpoint=10,
    go_on="python -m vime.run +method=memagent resume=true output_dir=…")`.
    """

    error: str
    """The class of the error, or `interrupted`."""
    text: str
    """The error's message; the traceback of an error that vime did not raise on purpose."""
    step: int
    """Steps that had been trained."""
    num_steps: int
    checkpoint: int | None
    """Step of the newest checkpoint."""
    go_on: str
    """The command that goes on from there; empty where nothing can."""

    @property
    def state(self) -> str:
        """`failed`, or `interrupted` by a person or by the machine's scheduler."""
        return INTERRUPTED if self.error == INTERRUPTED else "failed"

    @property
    def reached(self) -> str:
        """The steps that it made: `after 3 of 60 steps`."""
        return f"after {self.step} of {self.num_steps} steps"

    @property
    def cause(self) -> str:
        """The error in one line."""
        return f"{self.error}: {next(iter(self.text.splitlines()), '')}".removesuffix(": ")

    def lines(self) -> list[str]:
        """Lines that say how far the run has come and how to continue it."""
        kept = f"the last checkpoint is of step {self.checkpoint}" if self.checkpoint is not None else "there is no checkpoint"
        where = f"{self.error} {self.reached}; {kept}" if self.num_steps else self.error
        begins = "" if self.checkpoint is not None or not self.num_steps else " from the beginning"
        return [where, f"go on{begins} with: {self.go_on}"] if self.go_on else [where]


def ending_of(
    error: BaseException, config: RunConfig, path: Path, *, overrides: list[str], step: int, resumed: Path | None = None
) -> RunEnding:
    """The ending of the run in `path`, which `error` stops after `step` steps.

    `resumed` is the folder to go on with, where another run holds this one as one of its adapters.
    """
    is_interrupted = isinstance(error, KeyboardInterrupt)
    told = str(error) if isinstance(error, VimeError) else "".join(traceback.format_exception(error))
    found = [int(match[1]) for folder in (path / CHECKPOINTS).glob("*") if (match := _CHECKPOINT.fullmatch(folder.name))]
    words = [override_without_secret(word) for word in overrides if not word.startswith(("resume=", "output_dir="))]
    words += ["resume=true", setting("output_dir", str(resumed or path))]
    return RunEnding(
        error=INTERRUPTED if is_interrupted else type(error).__name__,
        text="" if is_interrupted else without_secret_text(told),
        step=step,
        num_steps=config.trainer.num_steps if config.mode is Mode.train and not config.adapters else 0,
        checkpoint=max(found, default=None),
        go_on=command(words) if config.mode in (Mode.train, Mode.eval) else "",
    )


def write_ending(path: Path, ending: RunEnding) -> None:
    """Writes `ended.json` into the run folder `path`."""
    write_text(path / ENDED, json.dumps(asdict(ending), indent=1, ensure_ascii=False) + "\n")


def read_ending(path: Path) -> RunEnding | None:
    """The way in which the run in `path` ended before its time; None if it is at work or has finished."""
    file = path / ENDED
    return RunEnding(**json.loads(file.read_text(encoding="utf-8"))) if file.exists() else None


def forget_ending(path: Path) -> None:
    """Removes `ended.json`, because the run goes on."""
    (path / ENDED).unlink(missing_ok=True)
