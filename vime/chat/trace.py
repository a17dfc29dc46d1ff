"""The timeline of one rollout: its spans, the time spent on each kind of span, and counts of events."""

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vime.types import Span

SHARE_STEPS = 10_000
SPREAD = 6_180_339_887
"""Multiples of the golden ratio are spread evenly, so that every stretch of slots has its share of traced ones."""


class Trace:
    """The spans of all attempts at a rollout and the counts of the last; `keep_spans=False` keeps only sums and counts.

    Example: `with context.trace.span("retrieve", kind="tool"): …`; `context.trace.count("empty_results")`.
    """

    __slots__ = ("counts", "keep_spans", "seconds", "spans")

    def __init__(self, *, keep_spans: bool = False) -> None:
        self.keep_spans = keep_spans
        self.spans: list[Span] = []
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.counts: Counter[str] = Counter()

    @contextmanager
    def span(self, name: str, *, kind: str, **details: Any) -> Iterator[dict[str, Any]]:
        """Books the time of a block; the block can add details to the yielded dictionary."""
        started = time.time()
        try:
            yield details
        finally:
            self.add(name, kind=kind, started=started, **details)

    def add(self, name: str, *, kind: str, started: float, **details: Any) -> None:
        """Books the time from `started` (Unix seconds) until now."""
        seconds = max(0.0, time.time() - started)
        self.seconds[kind] += seconds
        if self.keep_spans:
            self.spans.append(Span(name=name, kind=kind, start=started, seconds=seconds, details=details))

    def start_again(self) -> None:
        """Begins a new attempt, which counts its events from 0."""
        self.counts.clear()

    def count(self, name: str) -> None:
        """Counts one event."""
        self.counts[name] += 1


def is_traced(slot: int, share: float) -> bool:
    """True if the timelines of a group are kept, for a `share` of all groups; the choice is the same in every run."""
    return (slot * SPREAD // 1_000_000) % SHARE_STEPS < share * SHARE_STEPS
