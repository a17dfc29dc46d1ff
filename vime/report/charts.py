"""Charts as inline SVG: lines, stacked areas and bars. Colours come from the page, values under the pointer from its script."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 420, 210
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 10, 26
NUM_COLORS = 8
SMOOTH_FROM = 20
"""Lines with at least this many points are smoothed, with the raw line faint behind."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """One line: `y` over `x`, with optional error bars. Example: `Series(label="reward", x=[1, 2], y=[0.1, 0.4])`."""

    label: str
    x: list[float]
    y: list[float]
    error: list[float] | None = None


@dataclass(frozen=True, slots=True)
class _Axes:
    """Maps data to pixels."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float
    log: bool

    def x(self, value: float) -> float:
        return LEFT + (value - self.x_low) / ((self.x_high - self.x_low) or 1) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        value = math.log10(value) if self.log else value
        return HEIGHT - BOTTOM - (value - self.y_low) / ((self.y_high - self.y_low) or 1) * (HEIGHT - TOP - BOTTOM)


def line_chart(
    title: str, series: list[Series], *, x_label: str = "step", names: list[str] | None = None, smooth: bool = True
) -> str:
    """Lines over a common x axis; with `names` x counts through those categories. Values that are not finite leave a gap.

    The y axis is logarithmic if positive values span more than three decades.
    """
    values = [y for s in series for y in s.y if math.isfinite(y)]
    if not values:
        return ""
    axes = _axes([x for s in series for x in s.x], [*values, *_error_ends(series)])
    parts = [_grid(axes, x_label, names)]
    for number, s in enumerate(series):
        color = f"c{number % NUM_COLORS}"
        smoothed = smooth and len(s.y) >= SMOOTH_FROM
        if smoothed:
            parts.append(f'<path class="raw {color}" d="{_path(axes, s.x, s.y)}"/>')
        parts.append(f'<path class="line {color}" d="{_path(axes, s.x, smoothing(s.y) if smoothed else s.y)}"/>')
        if len(s.y) < SMOOTH_FROM:
            parts += [_dot(axes, x, y, color) for x, y in zip(s.x, s.y) if math.isfinite(y)]
        parts += [_whisker(axes, x, y, e, color) for x, y, e in zip(s.x, s.y, s.error or [])]
    return _figure(title, parts, series, _hover(axes, series, names, number_text), axes.log)


STANDALONE_COLORS = ("#2563eb", "#d97706", "#059669", "#7c3aed", "#dc2626", "#0891b2", "#65a30d", "#6b7280")
LEGEND_LINE = 12
TITLE_HEIGHT = 20


def standalone_chart(title: str, series: list[Series], *, x_label: str) -> str:
    """Lines as a whole SVG file, which needs neither the page's colours nor its script."""
    axes = _axes([x for s in series for x in s.x], [y for s in series for y in s.y])
    top = TITLE_HEIGHT + LEGEND_LINE * len(series)
    parts = [f'<text class="title" x="{LEFT}" y="{TITLE_HEIGHT - 6 - top}">{escape(title)}</text>', _grid(axes, x_label, None)]
    for number, s in enumerate(series):
        color = STANDALONE_COLORS[number % NUM_COLORS]
        parts.append(f'<path d="{_path(axes, s.x, s.y)}" fill="none" stroke="{color}" stroke-width="2"/>')
        below = LEGEND_LINE * (number - len(series) + 1)
        parts.append(f'<text x="{LEFT}" y="{below}" fill="{color}">{escape(s.label)}</text>')
    style = "text{font:9px sans-serif}.title{font-size:11px}.tick{fill:#666}.end{text-anchor:end}.mid{text-anchor:middle}"
    style += ".grid{stroke:#ddd;fill:none}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 {-top} {WIDTH} {HEIGHT + top}" '
        f'width="{2 * WIDTH}"><style>{style}</style><rect y="{-top}" width="100%" height="100%" fill="#fff"/>'
        f"{''.join(parts)}</svg>\n"
    )


def stacked_chart(title: str, series: list[Series], *, x_label: str = "step") -> str:
    """Areas that add up to a whole; series are shares (0 to 1) over the same x."""
    if not series or not series[0].x:
        return ""
    axes = _Axes(min(series[0].x), max(series[0].x), 0.0, 1.0, False)
    base = [0.0] * len(series[0].x)
    parts = []
    for number, s in enumerate(series):
        top = [low + (y if math.isfinite(y) else 0.0) for low, y in zip(base, s.y)]
        outline = [(x, y) for x, y in zip(s.x, top)] + [(x, y) for x, y in zip(reversed(s.x), reversed(base))]
        points = " ".join(f"{axes.x(x):.1f},{axes.y(min(y, 1.0)):.1f}" for x, y in outline)
        parts.append(f'<polygon class="area c{number % NUM_COLORS}" points="{points}"/>')
        base = top
    parts.append(_grid(axes, x_label, None, percent=True))
    return _figure(title, parts, series, _hover(axes, series, None, lambda value: f"{100 * value:.1f}%"), False)


def bar_chart(title: str, names: list[str], series: list[Series]) -> str:
    """Groups of bars, one per name, with error bars; series are 0 to 100 with x counting through the names."""
    axes = _Axes(-0.5, max(len(names) - 0.5, 0.5), 0.0, 100.0, False)
    width = (axes.x(1) - axes.x(0)) * 0.72 / max(len(series), 1)
    width = min(width, 34.0)
    parts = [_grid(axes, "", names)]
    for number, s in enumerate(series):
        color = f"c{number % NUM_COLORS}"
        for position, (x, y) in enumerate(zip(s.x, s.y)):
            left = axes.x(x) + (number - len(series) / 2) * width
            height = max(HEIGHT - BOTTOM - axes.y(y), 1.0)
            parts.append(
                f'<rect class="bar {color}" x="{left + 1:.1f}" y="{axes.y(y):.1f}" width="{width - 2:.1f}" '
                f'height="{height:.1f}" rx="2"/>'
            )
            if s.error:
                low, high = axes.y(max(y - s.error[position], 0)), axes.y(min(y + s.error[position], 100))
                parts.append(f'<path class="whisker" d="M{left + width / 2:.1f} {low:.1f}V{high:.1f}"/>')
    return _figure(title, parts, series, _hover(axes, series, names, lambda value: f"{value:.1f}"), False)


def smoothing(values: list[float]) -> list[float]:
    """Gaussian average over neighbours on both sides (standard deviation a fortieth of the points), so that nothing lags."""
    width = max(1.0, len(values) / 40)
    reach = math.ceil(3 * width)
    kernel = [math.exp(-0.5 * (offset / width) ** 2) for offset in range(reach + 1)]
    result = []
    for center in range(len(values)):
        near = range(max(0, center - reach), min(len(values), center + reach + 1))
        pairs = [(kernel[abs(center - i)], values[i]) for i in near if math.isfinite(values[i])]
        total = math.fsum(weight for weight, _ in pairs)
        result.append(math.fsum(weight * value for weight, value in pairs) / total if total else math.nan)
    return result


def number_text(value: float) -> str:
    """A number as people write it: `0.412`, `1,234`, `2e-06`."""
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1e}" if abs(value) < 1e-3 else f"{value:.4g}"


def _axes(xs: list[float], ys: list[float]) -> _Axes:
    low, high = min(ys), max(ys)
    log = low > 0 and high / low > 1000
    if log:
        low, high = math.floor(math.log10(low)), math.ceil(math.log10(high))
    elif low >= 0 and low < 0.5 * high:
        low, high = 0.0, high * 1.05
    else:
        margin = 0.06 * (high - low) or abs(high) * 0.1 or 1.0
        low, high = low - margin, high + margin
    return _Axes(min(xs), max(xs), low, high, log)


def _error_ends(series: list[Series]) -> list[float]:
    return [y + sign * e for s in series if s.error for y, e in zip(s.y, s.error) for sign in (-1, 1)]


def _ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers between `low` and `high`, for the marks of an axis."""
    raw = (high - low) / count or 1.0
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * 0.999)
    return [index * step for index in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _grid(axes: _Axes, x_label: str, names: list[str] | None, percent: bool = False) -> str:
    parts = []
    levels = [10.0**tick for tick in _ticks(axes.y_low, axes.y_high) if tick % 1 == 0] if axes.log else None
    for tick in levels or _ticks(axes.y_low, axes.y_high):
        y, text = axes.y(tick), f"{tick:.0%}" if percent else _tick_text(tick)
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text class="tick end" x="{LEFT - 6}" y="{y + 3.5:.1f}">{text}</text>')
    if names is not None:
        ticks = [(float(position), name) for position, name in enumerate(names)]
    else:
        ticks = [(tick, _tick_text(tick)) for tick in _ticks(axes.x_low, axes.x_high, 5)] or [
            (axes.x_low, _tick_text(axes.x_low))
        ]
    for tick, text in ticks:
        parts.append(f'<text class="tick mid" x="{axes.x(tick):.1f}" y="{HEIGHT - BOTTOM + 15}">{escape(text)}</text>')
    if x_label:
        parts.append(f'<text class="tick end" x="{WIDTH - RIGHT}" y="{HEIGHT - 1}">{escape(x_label)}</text>')
    return "".join(parts)


def _tick_text(value: float) -> str:
    value = 0.0 if abs(value) < 1e-12 else value
    return f"{value / 1000:g}k" if abs(value) >= 10_000 else f"{value:g}" if abs(value) >= 1e-3 or not value else f"{value:.2g}"


def _path(axes: _Axes, xs: list[float], ys: list[float]) -> str:
    parts, pen_down = [], False
    for x, y in zip(xs, ys):
        if math.isfinite(y) and not (axes.log and y <= 0):
            parts.append(f"{'L' if pen_down else 'M'}{axes.x(x):.1f} {axes.y(y):.1f}")
            pen_down = True
        else:
            pen_down = False
    return "".join(parts)


def _dot(axes: _Axes, x: float, y: float, color: str) -> str:
    return f'<circle class="dot {color}" cx="{axes.x(x):.1f}" cy="{axes.y(y):.1f}" r="2.5"/>'


def _whisker(axes: _Axes, x: float, y: float, error: float, color: str) -> str:
    return f'<path class="line {color}" d="M{axes.x(x):.1f} {axes.y(y - error):.1f}V{axes.y(y + error):.1f}"/>'


def _hover(axes: _Axes, series: list[Series], names: list[str] | None, text: Callable[[float], str]) -> str:
    """JSON for the page's script, to show values under the pointer: [pixel, heading, [[colour, label, value], …]] for every x."""
    found: dict[float, list[list[object]]] = {}
    for number, s in enumerate(series):
        for position, (x, y) in enumerate(zip(s.x, s.y)):
            value = text(y) + (f" ± {text(s.error[position])}" if s.error else "")
            found.setdefault(x, []).append([number % NUM_COLORS, s.label, value])
    rows = [[round(axes.x(x), 1), names[int(x)] if names else f"{x:g}", found[x]] for x in sorted(found)]
    return json.dumps(rows, ensure_ascii=False)


def _figure(title: str, parts: list[str], series: list[Series], hover: str, log: bool) -> str:
    legend = ""
    if len(series) > 1:
        keys = [f'<span><i class="b{number % NUM_COLORS}"></i>{escape(s.label)}</span>' for number, s in enumerate(series)]
        legend = f'<div class="legend">{"".join(keys)}</div>'
    note = " <small>log scale</small>" if log else ""
    label = escape(title, quote=True)
    return (
        f"<figure><figcaption>{escape(title)}{note}</figcaption>{legend}"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}" data-hover="{escape(hover, quote=True)}">'
        f'{"".join(parts)}<path class="cross" d=""/></svg></figure>'
    )
