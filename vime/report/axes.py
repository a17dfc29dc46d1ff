"""Axes of charts: from data to pixels, round marks, and the words at them."""

import itertools
import math
from dataclasses import dataclass, replace
from html import escape

WIDTH, HEIGHT = 420, 222
LEFT, RIGHT, TOP, BOTTOM = 50, 10, 20, 30
LONG = 20
"""Span of an x axis, as a factor, from which on it may be logarithmic."""
FLAT = 1e-3
"""Smallest range of an axis as a share of the metric's size, so that noise in the last digit does not look like a mountain."""


@dataclass(frozen=True, slots=True)
class Axes:
    """Maps data to pixels."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float
    log: bool
    x_log: bool = False

    def x(self, value: float) -> float:
        value = math.log10(value) if self.x_log else value
        return LEFT + (value - self.x_low) / ((self.x_high - self.x_low) or 1) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        value = math.log10(value) if self.log else value
        return HEIGHT - BOTTOM - (value - self.y_low) / ((self.y_high - self.y_low) or 1) * (HEIGHT - TOP - BOTTOM)


def axes_of(xs: list[float], ys: list[float]) -> Axes:
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
    return Axes(min(xs), max(xs), low, high, log)


def with_log_x(axes: Axes) -> Axes:
    """The same axes, with a logarithmic x axis if positive values span a factor of 20: each doubling is the same distance."""
    if axes.x_low <= 0 or axes.x_high < LONG * axes.x_low:
        return axes
    return replace(axes, x_low=math.log10(axes.x_low), x_high=math.log10(axes.x_high), x_log=True)


def ticks_of(low: float, high: float, count: int = 5, *, whole: bool = False) -> list[float]:
    """About `count` round numbers between `low` and `high`, for the marks of an axis; `whole` ones for an axis that counts."""
    raw = (high - low) / count or 1.0
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * 0.999)
    step = max(1.0, step if step % 1 == 0 else round(step)) if whole else step
    return [index * step for index in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def log_ticks(axes: Axes) -> list[float]:
    """1, 2, 5, 10, 20, … within a logarithmic x axis."""
    powers = range(math.floor(axes.x_low), math.ceil(axes.x_high) + 1)
    found = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
    return [tick for tick in found if axes.x_low - 1e-9 <= math.log10(tick) <= axes.x_high + 1e-9]


def grid(axes: Axes, x_label: str, names: list[str] | None, percent: bool = False, y_label: str = "") -> str:
    parts = []
    levels = [10.0**tick for tick in ticks_of(axes.y_low, axes.y_high) if tick % 1 == 0] if axes.log else None
    marks = levels or ticks_of(axes.y_low, axes.y_high)
    for tick in marks:
        y, text = axes.y(tick), f"{tick:.0%}" if percent else tick_text(tick, marks)
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text class="tick end" x="{LEFT - 6}" y="{y + 3.5:.1f}">{text}</text>')
    if names is not None:
        ticks = [(float(position), name) for position, name in enumerate(names)]
    else:
        found = log_ticks(axes) if axes.x_log else ticks_of(axes.x_low, axes.x_high, 5, whole=x_label == "step") or [axes.x_low]
        ticks = [(tick, tick_text(tick, found)) for tick in found]
    for tick, text in ticks:
        parts.append(f'<text class="tick mid" x="{axes.x(tick):.1f}" y="{HEIGHT - BOTTOM + 15}">{escape(text)}</text>')
    if x_label:
        parts.append(f'<text class="tick mid" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 2}">{escape(x_label)}</text>')
    if y_label:
        parts.append(f'<text class="tick" x="2" y="{TOP - 9}">{escape(y_label)}</text>')
    return "".join(parts)


def tick_text(value: float, ticks: list[float]) -> str:
    """Text of a mark, with just enough digits to distinguish it from its neighbours."""
    value = 0.0 if abs(value) < 1e-12 else value
    if abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    if value and abs(value) < 1e-3:
        return f"{value:.2g}"
    apart = min((b - a for a, b in itertools.pairwise(ticks)), default=1.0)
    digits = min(6, max(0, math.ceil(-math.log10(apart) - 1e-9) + 1))
    return f"{value:.{digits}f}".rstrip("0").rstrip(".") if apart < 1 else f"{value:g}"


def path(axes: Axes, xs: list[float], ys: list[float]) -> str:
    parts, pen_down = [], False
    for x, y in zip(xs, ys):
        if math.isfinite(y) and not (axes.log and y <= 0):
            parts.append(f"{'L' if pen_down else 'M'}{axes.x(x):.1f} {axes.y(y):.1f}")
            pen_down = True
        else:
            pen_down = False
    return "".join(parts)
