"""The cost of a fault in time: a run beside the same run without it, and how long workers took to start meanwhile.

Workers note when they begin to run rollouts and when they die, in the folder `VIME_FAULT_FOLDER` of the run.
"""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

from driven_run import DrivenRun

SHARED_LOSS_SECONDS = 40.0
"""Twice the life of a worker until the deadly prompt kills it: once among others, once alone."""
NUM_STARTS = 2
_noted: set[str] = set()


@dataclass(frozen=True, kw_only=True, slots=True)
class Delay:
    """Seconds that a batch took with a fault and without, and the longest start of a worker in place of a dead one.

    Example: `Delay(disturbed=118.2, undisturbed=66.0, start=9.1)`.
    """

    disturbed: float
    undisturbed: float
    start: float

    @property
    def limit(self) -> float:
        """The most seconds that the disturbed batch may take."""
        return self.undisturbed + SHARED_LOSS_SECONDS + NUM_STARTS * self.start

    def line(self) -> str:
        """The line that is shown of it."""
        return (
            f"the batch took {self.disturbed:.0f} s, without the fault {self.undisturbed:.0f} s; a worker started in "
            f"{self.start:.0f} s, so at most {self.limit:.0f} s were allowed"
        )


def note_once(event: str) -> None:
    """Notes the first time of an event in this process."""
    if event not in _noted:
        _noted.add(event)
        with (Path(os.environ["VIME_FAULT_FOLDER"]) / "notes.jsonl").open("a") as file:
            file.write(json.dumps({"event": event, "process": os.getpid(), "time": time.time()}) + "\n")


def compare(words: list[str], disturbed: Path, environment: dict[str, str], *, seconds: float) -> Delay:
    """Does the run without the fault, with these words, and measures the delay. Raises RuntimeError if it fails."""
    folder = disturbed.parent / "without_the_fault"
    folder.mkdir()
    run = DrivenRun(folder / "run", words, environment=environment | {"VIME_FAULT_FOLDER": str(folder)})
    code = run.finish(seconds=seconds)
    if code != 0 or run.leftovers():
        raise RuntimeError(f"the run without the fault ended with {code} and left {run.leftovers()}:\n{run.log_tail()}")
    return measure(disturbed, run.folder)


def measure(disturbed: Path, undisturbed: Path) -> Delay:
    """The delay of the first batch, from two run folders and the notes beside the first."""
    lines = (disturbed.parent / "notes.jsonl").read_text().splitlines()
    notes = sorted(map(json.loads, lines), key=lambda note: note["time"])
    starts = []
    for number, note in enumerate(notes):
        if note["event"] == "died":
            began = next((later["time"] for later in notes[number:] if later["event"] == "began"), note["time"])
            starts.append(began - note["time"])
    return Delay(disturbed=_generation(disturbed), undisturbed=_generation(undisturbed), start=max(starts))


def _generation(folder: Path) -> float:
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return next(step["time/generation_seconds"] for step in steps if "time/generation_seconds" in step)
