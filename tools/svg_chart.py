"""A chart as a whole SVG file, which needs neither a page's colours nor its script."""

from html import escape

from vime.report.axes import HEIGHT, LEFT, WIDTH, axes_of, grid, path, with_log_x
from vime.report.charts import NUM_COLORS, Series

STANDALONE_COLORS = ("#2563eb", "#d97706", "#059669", "#7c3aed", "#dc2626", "#0891b2", "#65a30d", "#6b7280")
LEGEND_LINE = 12
MARGIN = 24
"""Room for half of the last name on the x axis."""
TITLE_HEIGHT = 20


def standalone_chart(title: str, series: list[Series], *, x_label: str, y_label: str = "", names: list[str] | None = None) -> str:
    """Lines with error bars; with `names` x counts through those categories.

    The y axis is logarithmic if positive values span more than three decades.
    """
    ends = [y + sign * e for s in series if s.error for y, e in zip(s.y, s.error) for sign in (-1, 1)]
    axes = axes_of([x for s in series for x in s.x], [*(y for s in series for y in s.y), *ends])
    axes = with_log_x(axes) if names is None and x_label != "step" else axes
    top = TITLE_HEIGHT + LEGEND_LINE * len(series)
    parts = [
        f'<text class="title" x="{LEFT}" y="{TITLE_HEIGHT - 6 - top}">{escape(title)}</text>',
        grid(axes, x_label, names, y_label=y_label),
    ]
    for number, s in enumerate(series):
        color = STANDALONE_COLORS[number % NUM_COLORS]
        parts.append(f'<path d="{path(axes, s.x, s.y)}" fill="none" stroke="{color}" stroke-width="2"/>')
        for x, y, error in zip(s.x, s.y, s.error or []):
            low, high = axes.y(y - error), axes.y(y + error)
            parts.append(f'<path d="M{axes.x(x):.1f} {low:.1f}V{high:.1f}" stroke="{color}" stroke-width="1.5"/>')
        below = LEGEND_LINE * (number - len(series) + 1)
        parts.append(f'<text x="{LEFT}" y="{below}" fill="{color}">{escape(s.label)}</text>')
    style = "text{font:9px sans-serif}.title{font-size:10px}.tick{fill:#666}.end{text-anchor:end}.mid{text-anchor:middle}"
    style += ".grid{stroke:#ddd;fill:none}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 {-top} {WIDTH + MARGIN} {HEIGHT + top}" '
        f'width="{2 * (WIDTH + MARGIN)}"><style>{style}</style><rect y="{-top}" width="100%" height="100%" fill="#fff"/>'
        f"{''.join(parts)}</svg>\n"
    )
