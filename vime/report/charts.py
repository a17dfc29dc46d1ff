"""Charts as inline SVG: lines, stacked areas and bars. Colours come from the page, values under the pointer from its script.

Plotly, which draws the viewer's charts, would add its script of 4.6 MiB to every report of less than 0.1 MiB, and it writes
no SVG files without a browser; the figures of `results/` are made of the same shapes (`tools/svg_chart.py`).
"""

import itertools
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape

from vime.report.axes import BOTTOM, FLAT, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Axis, x_axis, y_axis

COLORS = tuple(f"var(--{number})" for number in range(8))
"""The colours of the page, by turns."""
SMOOTH_FROM = 20
"""Lines with at least this many points are smoothed, with the raw line faint behind."""
BAR_WIDTH = 34.0


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
    if not any(math.isfinite(y) for s in series for y in s.y):
        return ""
    x = x_axis([x for s in series for x in s.x], whole=x_label == "step", names=names)
    y = y_axis(values_of(series))
    plot = grid(x, y, x_label, y_label) + colored(line(x, y, s, smooth=smooth) for s in series)
    return _figure(title, plot, series, x, "; ".join(["log scale"] * y.log + [note] * bool(note)))


def stacked_chart(title: str, series: list[Series]) -> str:
    """Areas that add up to a whole; series are shares (0 to 1) over the same steps."""
    if not series or not series[0].x:
        return ""
    x, y = x_axis(series[0].x, whole=True), PERCENT
    base = [0.0] * len(series[0].x)
    series = [replace(s, y=[100 * y if math.isfinite(y) else 0.0 for y in s.y]) for s in series]
    areas = []
    for s in series:
        top = [min(100.0, low + y) for low, y in zip(base, s.y)]
        areas.append(f'<path class="area" d="{_path(x, y, [*s.x, *reversed(s.x)], [*top, *reversed(base)])}"/>')
        base = top
    return _figure(title, colored(areas) + grid(x, y, "step", "share, %"), series, x)


def bar_chart(title: str, names: list[str], series: list[Series], *, y_label: str = "") -> str:
    """Groups of bars, one per name, with error bars; series are 0 to 100 with x counting through the names."""
    x, y = x_axis([-0.5, max(len(names) - 0.5, 0.5)], names=names), PERCENT
    width = min(BAR_WIDTH, (x(1) - x(0)) * 0.72 / max(len(series), 1))
    bars = []
    for number, s in enumerate(series):
        centres = [x(place) + (number - len(series) / 2 + 0.5) * width for place in s.x]
        tops = "".join(f"M{centre:.1f} {y(0):.1f}V{min(y(value), y(0) - 1):.1f}" for centre, value in zip(centres, s.y))
        ends = [(centre, max(v - e, 0), min(v + e, 100)) for centre, v, e in zip(centres, s.y, s.error or [])]
        bars.append(f'<path class="bar" stroke-width="{width - 2:.1f}" d="{tops}"/>{_whiskers(y, ends)}')
    return _figure(title, grid(x, y, "", y_label) + colored(bars), series, x)


PERCENT = Axis(low=0.0, high=100.0, start=HEIGHT - BOTTOM, end=TOP)


def values_of(series: list[Series]) -> list[float]:
    """All finite values, and the ends of their error bars."""
    ends = [y + sign * e for s in series for y, e in zip(s.y, s.error or []) for sign in (-1, 1)]
    return [value for value in [*(y for s in series for y in s.y), *ends] if math.isfinite(value)]


def grid(x: Axis, y: Axis, x_label: str, y_label: str) -> str:
    """The lines, marks and names of both axes."""
    parts = []
    for value, text in y.marks():
        parts.append(f'<path class="grid" d="M{LEFT} {y(value):.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text class="tick end" x="{LEFT - 6}" y="{y(value) + 3.5:.1f}">{text}</text>')
    for value, text in x.marks():
        parts.append(f'<text class="tick mid" x="{x(value):.1f}" y="{HEIGHT - BOTTOM + 15}">{escape(text)}</text>')
    if x_label:
        parts.append(f'<text class="tick mid" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 2}">{escape(x_label)}</text>')
    if y_label:
        parts.append(f'<text class="tick" x="2" y="{TOP - 9}">{escape(y_label)}</text>')
    return "".join(parts)


def line(x: Axis, y: Axis, s: Series, *, smooth: bool) -> str:
    """A line with error bars: a short one with its points, a long one, with `smooth`, smoothed over its raw line."""
    is_long = len(s.y) >= SMOOTH_FROM
    raw = f'<path class="raw" d="{_path(x, y, s.x, s.y)}"/>' if smooth and is_long else ""
    drawn = f'<path class="line" d="{_path(x, y, s.x, smoothing(s.y) if raw else s.y)}"/>'
    points = [] if is_long else [f"M{x(a):.1f} {y(b):.1f}h0" for a, b in zip(s.x, s.y) if _is_drawn(y, b)]
    ends = [(x(a), b - e, b + e) for a, b, e in zip(s.x, s.y, s.error or [])]
    return raw + drawn + (f'<path class="dots" d="{"".join(points)}"/>' if points else "") + _whiskers(y, ends)


def colored(shapes: Iterable[str], colors: Sequence[str] = COLORS) -> str:
    """Shapes in these colours, one after another."""
    return "".join(f'<g style="color:{color}">{shape}</g>' for shape, color in zip(shapes, itertools.cycle(colors)))


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


def _path(x: Axis, y: Axis, xs: list[float], ys: list[float]) -> str:
    parts, pen_down = [], False
    for a, b in zip(xs, ys):
        if is_drawn := _is_drawn(y, b):
            parts.append(f"{'L' if pen_down else 'M'}{x(a):.1f} {y(b):.1f}")
        pen_down = is_drawn
    return "".join(parts)


def _is_drawn(y: Axis, value: float) -> bool:
    return math.isfinite(value) and not (y.log and value <= 0)


def _whiskers(y: Axis, ends: list[tuple[float, float, float]]) -> str:
    """Error bars: each a pixel of the x axis and two values."""
    d = "".join(f"M{pixel:.1f} {y(low):.1f}V{y(high):.1f}" for pixel, low, high in ends)
    return f'<path class="whisker" d="{d}"/>' if d else ""


def _hover(series: list[Series], x: Axis) -> str:
    """JSON for the page's script, to show values under the pointer: [pixel, heading, [[colour, label, value], …]] for every x."""
    found: dict[float, list[list[object]]] = {}
    for s, color in zip(series, itertools.cycle(COLORS)):
        for position, (place, y) in enumerate(zip(s.x, s.y)):
            value = number_text(y) + (f" ± {number_text(s.error[position])}" if s.error else "")
            found.setdefault(place, []).append([color, s.label, value])
    rows = [[round(x(place), 1), x.names[int(place)] if x.names else f"{place:g}", found[place]] for place in sorted(found)]
    return json.dumps(rows, ensure_ascii=False)


def _figure(title: str, plot: str, series: list[Series], x: Axis, note: str = "") -> str:
    keys = [f'<i style="background:{color}"></i>{escape(s.label)}' for s, color in zip(series, itertools.cycle(COLORS))]
    legend = "".join(f"<span>{key}</span>" for key in keys)
    return (
        f"<figure><figcaption>{escape(title)}{f' <small>{escape(note)}</small>' if note else ''}</figcaption>"
        + (f'<div class="legend">{legend}</div>' if len(series) > 1 else "")
        + f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}" data-hover="{escape(_hover(series, x))}">'
        f'{plot}<path class="cross" d=""/></svg></figure>'
    )
