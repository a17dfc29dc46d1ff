"""Two evaluations of the same items, compared item by item: the difference of the means, and how sure it is.

Each item is first averaged over the runs of its evaluation, so the interval is over items. Comparing pairs removes the difficulty
of the items, which causes most of the variation of a score.
"""

from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy

from vime.report.summary import IncompleteRunError

NUM_RESAMPLES = 10_000
CONFIDENCE = 0.95
SEED = 0
Runs = list[list[dict[str, Any]]]


@dataclass(frozen=True, kw_only=True, slots=True)
class PairedComparison:
    """Second minus first, in points of 0 to 100.

    Example: `PairedComparison(num_items=100, first=7.0, second=98.7, difference=91.7, low=87.3, high=95.7, num_better=93,
    num_worse=0)`; `low` and `high` are the ends of the 95 % interval, `num_better` items have a higher mean in the second.
    """

    num_items: int
    first: float
    second: float
    difference: float
    low: float
    high: float
    num_better: int
    num_worse: int

    @property
    def is_different(self) -> bool:
        """True if the interval leaves out 0."""
        return self.low > 0 or self.high < 0


def compare(first: Runs, second: Runs, *, score: str = "strict") -> PairedComparison:
    """Compares two rows over one data set; `score` is strict or lenient.

    The interval is a percentile bootstrap over items with 10,000 resamples under a fixed seed. Raises `IncompleteRunError` if
    the two are not of the same items.
    """
    check_same_items(first[0], second[0])
    a, b = _means(first, score), _means(second, score)
    differences = 100 * (b - a)
    generator = numpy.random.default_rng(SEED)
    size = len(differences)
    resampled = [differences[generator.integers(size, size=size)].mean() for _ in range(NUM_RESAMPLES)]
    low, high = numpy.quantile(resampled, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return PairedComparison(
        num_items=size,
        first=100 * float(a.mean()),
        second=100 * float(b.mean()),
        difference=float(differences.mean()),
        low=float(low),
        high=float(high),
        num_better=int((differences > 0).sum()),
        num_worse=int((differences < 0).sum()),
    )


def check_same_items(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> None:
    """Raises `IncompleteRunError` if two runs are not of the same items: same number, questions, answers and documents."""
    if len(first) != len(second):
        raise IncompleteRunError(f"{len(first)} items cannot be compared with {len(second)}")
    others = [a["index"] for a, b in zip(first, second, strict=True) if a["item"] != b["item"]]
    if others:
        raise IncompleteRunError(f"{len(others)} of {len(first)} items differ, the first at index {others[0]}: not the same data")


def _means(runs: Runs, score: str) -> "numpy.ndarray[Any, Any]":
    """The mean over runs of each item, 0 to 1."""
    return numpy.array([fmean(item[score] for item in items) for items in zip(*runs, strict=True)])
