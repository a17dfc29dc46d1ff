"""A chart as a whole SVG file, which needs neither a page's colours nor its script."""

from html import escape

from vime.report.axes import HEIGHT, LEFT, WIDTH, x_axis, y_axis
from vime.report.charts import Series, colored, grid, line, values_of

COLORS = ("#2563eb", "#d97706", "#059669", "#7c3aed", "#dc2626", "#0891b2", "#65a30d", "#6b7280")
STYLE = (
    "text{font:9px sans-serif;fill:currentColor}.title{font-size:10px}.tick{fill:#666}.end{text-anchor:end}"
    ".mid{text-anchor:middle}path{fill:none;stroke:currentColor;stroke-width:2}.grid{stroke:#ddd;stroke-width:1}.whisker{stroke-width:1.5}"
    ".dots{stroke-width:5;stroke-linecap:round}"
)
LEGEND_LINE = 12
LONG = 20
"""Span of an x axis, as a factor, from which on it is logarithmic: each doubling is the same distance."""
MARGIN = 24
"""Room for half of the last name on the x axis."""
TITLE_HEIGHT = 20


def standalone_chart(title: str, series: list[Series], *, x_label: str, y_label: str = "", names: list[str] | None = None) -> str:
    """Lines with error bars; with `names` x counts through those categories.

    The y axis is logarithmic if positive values span more than three decades.
    """
    xs = [x for s in series for x in s.x]
    is_step, is_long = x_label == "step", 0 < LONG * min(xs) <= max(xs)
    x, y = x_axis(xs, whole=is_step, log=is_long and not is_step and names is None, names=names), y_axis(values_of(series))
    height = LEGEND_LINE * len(series)
    top = TITLE_HEIGHT + height
    legend = [f'<text x="{LEFT}" y="{LEGEND_LINE * (n + 1) - height}">{escape(s.label)}</text>' for n, s in enumerate(series)]
    lines = [line(x, y, s, smooth=False) for s in series]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 {-top} {WIDTH + MARGIN} {HEIGHT + top}" '
        f'width="{2 * (WIDTH + MARGIN)}"><style>{STYLE}</style><rect y="{-top}" width="100%" height="100%" fill="#fff"/>'
        f'<text class="title" x="{LEFT}" y="{TITLE_HEIGHT - 6 - top}">{escape(title)}</text>'
        f"{grid(x, y, x_label, y_label)}{colored(lines, COLORS)}{colored(legend, COLORS)}</svg>\n"
    )
