"""`trace.json`: timelines in Chrome's trace format, for https://ui.perfetto.dev or chrome://tracing.

The driver's phases are one process, each traced group another with a track for every rollout. Events are appended as they
happen: the format allows the closing bracket to be missing, so the file of a run that was killed can be opened too.
"""

import json
from pathlib import Path
from typing import Any

from vime.types import Group

DRIVER, FIRST_GROUP = 0, 1
"""Process numbers in the trace; group s is `FIRST_GROUP + s`."""


class TraceWriter:
    """Appends to one trace; with `path` None nothing is written."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        if path is not None and not path.exists():
            self._append([_name("process_name", "driver", process=DRIVER)], opening=True)

    def phases(self, spans: list[tuple[str, float, float]], *, step: int) -> None:
        """What the driver did: (phase, start in Unix seconds, seconds)."""
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

    def _append(self, events: list[dict[str, Any]], *, opening: bool = False) -> None:
        if self._path is not None and events:
            with self._path.open("a", encoding="utf-8") as file:
                file.write("[\n" * opening + "".join(json.dumps(event) + ",\n" for event in events))


def read_trace(path: Path) -> list[dict[str, Any]]:
    """The events of a trace, also of one that is not closed."""
    return json.loads(path.read_text(encoding="utf-8").rstrip().rstrip(",") + "]")


def _event(
    name: str, kind: str, start: float, seconds: float, process: int, track: int, details: dict[str, Any]
) -> dict[str, Any]:
    """A complete event ("X"); times are in microseconds."""
    times = {"ts": round(start * 1e6), "dur": round(seconds * 1e6)}
    return {"name": name, "cat": kind, "ph": "X", **times, "pid": process, "tid": track, "args": {"kind": kind, **details}}


def _name(what: str, name: str, *, process: int, track: int = 0) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": process, "tid": track, "args": {"name": name}}
