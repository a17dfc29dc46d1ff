"""`trace.json`: timelines in Chrome's trace format, for https://ui.perfetto.dev or chrome://tracing.

The driver's phases are one process, each traced group another with a track for every rollout. Events are appended as they happen:
the format allows the closing bracket to be missing, so the file of a run that was killed can be opened too. A large file is set
aside as `trace-000001.json` and so on, each complete in itself; the oldest of these are removed.
"""

import json
from pathlib import Path
from typing import Any

from vime.report.rotation import keep_newest
from vime.types import Group

DRIVER, FIRST_GROUP = 0, 1
"""Process numbers in the trace; group s is `FIRST_GROUP + s`."""


NUM_PARTS = 4
"""Number of files over which the bytes of a trace are divided."""


class TraceWriter:
    """Appends to one trace of at most about `max_bytes`; with `path` None nothing is written."""

    def __init__(self, path: Path | None, *, max_bytes: int) -> None:
        self._path, self._max_bytes = path, max_bytes
        if path is not None and not path.exists():
            self._begin()

    def phases(self, spans: list[tuple[str, float, float]], *, step: int) -> None:
        """Adds the driver's phases: (phase, start in Unix seconds, seconds)."""
        self._append([_event(name, "step", start, seconds, DRIVER, 0, {"step": step}) for name, start, seconds in spans])

    def groups(self, groups: list[Group]) -> None:
        """The timelines of the rollouts that have one."""
        events: list[dict[str, Any]] = []
        for group in groups:
            traced = [rollout for rollout in group.rollouts if rollout.spans]
            if not traced:
                continue
            process = FIRST_GROUP + traced[0].group_index
            events.append(_name("process_name", f"group {traced[0].group_index}, row {group.prompt.row}", process=process))
            for track, rollout in enumerate(traced):
                name = f"rollout {rollout.rollout_id}: {rollout.stop_reason.value}, reward {rollout.reward:g}"
                events.append(_name("thread_name", name, process=process, track=track))
                events += [_event(s.name, s.kind, s.start, s.seconds, process, track, s.details) for s in rollout.spans]
        self._append(events)

    def _begin(self) -> None:
        self._append([_name("process_name", "driver", process=DRIVER)], opening=True)

    def _append(self, events: list[dict[str, Any]], *, opening: bool = False) -> None:
        if self._path is None or not events:
            return
        if not opening and self._path.exists() and self._path.stat().st_size > self._max_bytes / NUM_PARTS:
            earlier = _earlier_parts(self._path)
            number = int(earlier[-1].stem.rpartition("-")[2]) + 1 if earlier else 1
            self._path.replace(self._path.with_name(f"{self._path.stem}-{number:06d}.json"))
            keep_newest(_earlier_parts(self._path), max_bytes=self._max_bytes * (NUM_PARTS - 1) // NUM_PARTS)
            self._begin()
        with self._path.open("a", encoding="utf-8") as file:
            file.write("[\n" * opening + "".join(json.dumps(event) + ",\n" for event in events))


def read_trace(path: Path) -> list[dict[str, Any]]:
    """Returns the events of a trace, which may be unfinished, and of those of its earlier files that still exist."""
    texts = [part.read_text(encoding="utf-8") for part in (*_earlier_parts(path), path)]
    return [event for text in texts for event in json.loads(text.rstrip().rstrip(",") + "]")]


def _earlier_parts(path: Path) -> list[Path]:
    return sorted(path.parent.glob(f"{path.stem}-*.json"))


def _event(
    name: str, kind: str, start: float, seconds: float, process: int, track: int, details: dict[str, Any]
) -> dict[str, Any]:
    """A complete event ("X"); times are in microseconds."""
    times = {"ts": round(start * 1e6), "dur": round(seconds * 1e6)}
    return {"name": name, "cat": kind, "ph": "X", **times, "pid": process, "tid": track, "args": {"kind": kind, **details}}


def _name(what: str, name: str, *, process: int, track: int = 0) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": process, "tid": track, "args": {"name": name}}
