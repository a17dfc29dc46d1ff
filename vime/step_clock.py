"""The time of a step: its phases, and the overlapping work of trainer and servers."""

import time
from collections.abc import Awaitable, Callable

from vime.chat.traffic import ModelUsage


class StepClock:
    """Splits a step into named phases; with `usage` it also reports the servers' work in each."""

    def __init__(self, usage: Callable[[], Awaitable[ModelUsage]] | None = None) -> None:
        self._usage = usage
        self._started = self._last = time.monotonic()
        self._phases: dict[str, float] = {}
        self._used = self._first_used = ModelUsage()
        self._busy: dict[str, float] = {}
        self.spans: list[tuple[str, float, float]] = []
        """(phase, Unix seconds of its start, seconds), for the trace."""

    async def start(self) -> None:
        """Takes the servers' counters as they are now."""
        if self._usage is not None:
            self._used = self._first_used = await self._usage()
        self._started = self._last = time.monotonic()

    async def mark(self, phase: str) -> None:
        """Books the time since the last mark under `phase`."""
        now = time.monotonic()
        seconds = now - self._last
        self._phases[phase] = self._phases.get(phase, 0.0) + seconds
        self.spans.append((phase, time.time() - seconds, seconds))
        self._last = now
        if self._usage is not None:
            before, self._used = self._used, await self._usage()
            busy = max(0.0, self._used.busy_seconds - before.busy_seconds)  # a new worker counts from 0
            self._busy[phase] = self._busy.get(phase, 0.0) + min(busy, seconds)

    def metrics(self) -> dict[str, float]:
        """`time/<phase>_seconds` and `…_share`, `time/step_seconds`, and `utilization/…` as shares of the step."""
        total = max(time.monotonic() - self._started, 1e-9)
        metrics = {"time/step_seconds": total, "time/waiting_share": 1 - sum(self._phases.values()) / total}
        for phase, seconds in self._phases.items():
            metrics[f"time/{phase}_seconds"], metrics[f"time/{phase}_share"] = seconds, seconds / total
        if self._usage is None:
            return metrics
        calls = max(0.0, self._used.call_seconds - self._first_used.call_seconds)
        return metrics | {
            "utilization/trainer": self._phases.get("training", 0.0) / total,
            "utilization/servers": sum(self._busy.values()) / total,
            "utilization/overlapped": self._busy.get("training", 0.0) / total,
            "utilization/calls_mean": calls / total,
        }
