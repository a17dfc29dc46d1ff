"""Charts as inline SVG: lines, stacked areas and bars. Colours come from the page, values under the pointer from its script."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from html import escape

from vime.report.axes import BOTTOM, FLAT, HEIGHT, WIDTH, Axes, axes_of, grid, path

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


def line_chart(
    title: str,
    series: list[Series],
    *,
    x_label: str = "step",
    y_label: str = "",
    names: list[str] | None = None,
    smooth: bool = True,
    note: str = "",
) -> str:
    """Lines over a common x axis; with `names` x counts through those categories. Values that are not finite leave a gap.

    The y axis is logarithmic if positive values span more than three decades. `note` is shown beside the title.
    """
    values = [y for s in series for y in s.y if math.isfinite(y)]
    if not values:
        return ""
    axes = axes_of([x for s in series for x in s.x], [*values, *_error_ends(series)])
    parts = [grid(axes, x_label, names, y_label=y_label)]
    for number, s in enumerate(series):
        color = f"c{number % NUM_COLORS}"
        smoothed = smooth and len(s.y) >= SMOOTH_FROM
        if smoothed:
            parts.append(f'<path class="raw {color}" d="{path(axes, s.x, s.y)}"/>')
        parts.append(f'<path class="line {color}" d="{path(axes, s.x, smoothing(s.y) if smoothed else s.y)}"/>')
        if len(s.y) < SMOOTH_FROM:
            parts += [_dot(axes, x, y, color) for x, y in zip(s.x, s.y) if math.isfinite(y)]
        parts += [_whisker(axes, x, y, e, color) for x, y, e in zip(s.x, s.y, s.error or [])]
    return _figure(title, parts, series, _hover(axes, series, names, number_text), ["log scale"] * axes.log + [note] * bool(note))


def stacked_chart(title: str, series: list[Series], *, x_label: str = "step") -> str:
    """Areas that add up to a whole; series are shares (0 to 1) over the same x."""
    if not series or not series[0].x:
        return ""
    axes = Axes(min(series[0].x), max(series[0].x), 0.0, 1.0, False)
    base = [0.0] * len(series[0].x)
    parts = []
    for number, s in enumerate(series):
        top = [low + (y if math.isfinite(y) else 0.0) for low, y in zip(base, s.y)]
        outline = [(x, y) for x, y in zip(s.x, top)] + [(x, y) for x, y in zip(reversed(s.x), reversed(base))]
        points = " ".join(f"{axes.x(x):.1f},{axes.y(min(y, 1.0)):.1f}" for x, y in outline)
        parts.append(f'<polygon class="area c{number % NUM_COLORS}" points="{points}"/>')
        base = top
    parts.append(grid(axes, x_label, None, percent=True, y_label="share"))
    return _figure(title, parts, series, _hover(axes, series, None, lambda value: f"{100 * value:.1f}%"))


def bar_chart(title: str, names: list[str], series: list[Series], *, y_label: str = "") -> str:
    """Groups of bars, one per name, with error bars; series are 0 to 100 with x counting through the names."""
    axes = Axes(-0.5, max(len(names) - 0.5, 0.5), 0.0, 100.0, False)
    width = (axes.x(1) - axes.x(0)) * 0.72 / max(len(series), 1)
    width = min(width, 34.0)
    parts = [grid(axes, "", names, y_label=y_label)]
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
    return _figure(title, parts, series, _hover(axes, series, names, lambda value: f"{value:.1f}"))


def smoothing(values: list[float]) -> list[float]:
    """Average over a value and those before it, with weights that fall by 1/e over a fortieth of the points.

    It starts at the first value and knows nothing of later ones: a line never rises before its cause.
    """
    keep = math.exp(-1 / max(1.0, len(values) / 40))
    result, total, weight = [], 0.0, 0.0
    for value in values:
        total, weight = keep * total, keep * weight
        if math.isfinite(value):
            total, weight = total + value, weight + 1.0
        result.append(total / weight if weight else math.nan)
    return result


def is_flat(values: list[float]) -> bool:
    """True if values change by less than a thousandth of their size."""
    found = [value for value in values if math.isfinite(value)]
    return not found or max(found) - min(found) <= FLAT * max(map(abs, found))


def number_text(value: float) -> str:
    """A number as people write it: `0.412`, `1,234`, `2e-06`."""
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1e}" if abs(value) < 1e-3 else f"{value:.4g}"


def _error_ends(series: list[Series]) -> list[float]:
    return [y + sign * e for s in series if s.error for y, e in zip(s.y, s.error) for sign in (-1, 1)]


def _dot(axes: Axes, x: float, y: float, color: str) -> str:
    return f'<circle class="dot {color}" cx="{axes.x(x):.1f}" cy="{axes.y(y):.1f}" r="2.5"/>'


def _whisker(axes: Axes, x: float, y: float, error: float, color: str) -> str:
    return f'<path class="line {color}" d="M{axes.x(x):.1f} {axes.y(y - error):.1f}V{axes.y(y + error):.1f}"/>'


def _hover(axes: Axes, series: list[Series], names: list[str] | None, text: Callable[[float], str]) -> str:
    """JSON for the page's script, to show values under the pointer: [pixel, heading, [[colour, label, value], …]] for every x."""
    found: dict[float, list[list[object]]] = {}
    for number, s in enumerate(series):
        for position, (x, y) in enumerate(zip(s.x, s.y)):
            value = text(y) + (f" ± {text(s.error[position])}" if s.error else "")
            found.setdefault(x, []).append([number % NUM_COLORS, s.label, value])
    rows = [[round(axes.x(x), 1), names[int(x)] if names else f"{x:g}", found[x]] for x in sorted(found)]
    return json.dumps(rows, ensure_ascii=False)


def _figure(title: str, parts: list[str], series: list[Series], hover: str, notes: list[str] | None = None) -> str:
    legend = ""
    if len(series) > 1:
        keys = [f'<span><i class="b{number % NUM_COLORS}"></i>{escape(s.label)}</span>' for number, s in enumerate(series)]
        legend = f'<div class="legend">{"".join(keys)}</div>'
    note = f" <small>{escape('; '.join(notes))}</small>" if notes else ""
    label = escape(title, quote=True)
    return (
        f"<figure><figcaption>{escape(title)}{note}</figcaption>{legend}"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}" data-hover="{escape(hover, quote=True)}">'
        f'{"".join(parts)}<path class="cross" d=""/></svg></figure>'
    )
