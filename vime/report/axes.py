"""Axes of charts: from values to pixels, round marks, and the words at them."""

import math
from dataclasses import dataclass

WIDTH, HEIGHT = 420, 222
LEFT, RIGHT, TOP, BOTTOM = 50, 10, 20, 30
FLAT = 1e-3
"""Smallest range of an axis as a share of the metric's size, so that noise in the last digit does not look like a mountain."""
WIDE = 3
"""Powers of ten of a logarithmic axis that are marked without 2 and 5 times them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """Maps values from `low` to `high` to pixels from `start` to `end`; with `log`, both are powers of ten.

    With `names` it counts through these categories, with `whole` its marks are whole numbers.
    Example: `Axis(low=0.0, high=60.0, start=50, end=410, whole=True)` is an x axis of 60 steps.
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False
    whole: bool = False
    names: tuple[str, ...] = ()

    def __call__(self, value: float) -> float:
        value = math.log10(value) if self.log else value
        return self.start + (value - self.low) / ((self.high - self.low) or 1) * (self.end - self.start)

    def marks(self) -> list[tuple[float, str]]:
        """About five round values with their texts."""
        if self.names:
            return [(float(place), name) for place, name in enumerate(self.names)]
        found = self._powers() if self.log else round_values(self.low, self.high, whole=self.whole) or [self.low]
        return [(value, f"{value / 1000:g}k" if abs(value) >= 10_000 else f"{value:g}") for value in found]

    def _powers(self) -> list[float]:
        factors = (1, 2, 5) if self.high - self.low < WIDE else (1,)
        powers = round_values(math.floor(self.low), math.ceil(self.high), whole=True)
        found = [factor * 10.0**power for power in powers for factor in factors]
        return [value for value in found if self.low - 1e-9 <= math.log10(value) <= self.high + 1e-9]


def x_axis(xs: list[float], *, whole: bool = False, log: bool = False, names: list[str] | None = None) -> Axis:
    """An axis from the smallest of these values to the largest."""
    low, high = (math.log10(min(xs)), math.log10(max(xs))) if log else (min(xs), max(xs))
    return Axis(low=low, high=high, start=LEFT, end=WIDTH - RIGHT, whole=whole, log=log, names=tuple(names or ()))


def y_axis(ys: list[float]) -> Axis:
    """An axis around these values; logarithmic if they are positive and span more than three decades."""
    low, high = min(ys), max(ys)
    log = low > 0 and high / low > 1000
    if log:
        low, high = math.floor(math.log10(low)), math.ceil(math.log10(high))
    elif low >= 0 and low < 0.5 * high:
        low, high = 0.0, high * 1.05
    elif low == high:  # around itself, its marks would differ in the last digits only
        low, high = (min(0.0, 1.25 * low), max(0.0, 1.25 * high)) if low else (0.0, 1.0)
    else:
        margin = max(0.06 * (high - low), FLAT * abs(high)) or 1.0
        low, high = low - margin, high + margin
    return Axis(low=low, high=high, start=HEIGHT - BOTTOM, end=TOP, log=log)


def round_values(low: float, high: float, *, whole: bool = False) -> list[float]:
    """About five round numbers between `low` and `high`."""
    raw = (high - low) / 5 or 1.0
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * 0.999)
    step = max(1.0, step if step % 1 == 0 else round(step)) if whole else step
    return [index * step for index in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
