"""The figure of a results page has a line for each row and seed of the longest run, with error bars."""

import re
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2] / "tools"))
from score_figure import score_figure

from vime.report.sections import lengths_of


def table(run: str, seed: int, lengths: list[int]) -> dict[str, Any]:
    cells = [{"mean": 50.0, "sd": 2.0, "num_runs": 3} for _ in lengths]
    rows = [{"name": name, "strict": cells} for name in ("single turn", "trained scaffold")]
    return {"run": run, "seed": seed, "columns": [f"docs_{length}" for length in lengths], "rows": rows}


def test_rows_and_seeds_of_the_longest_run_are_drawn() -> None:
    figure = score_figure([table("short", 0, [1, 2, 3]), table("long", 0, [1, 2, 3, 4]), table("long", 1, [1, 2, 3, 4])])
    assert figure is not None and figure.count("trained scaffold, seed") == 2 and "short" not in figure
    bars = re.findall(r'class="whisker" d="([^"]*)"', figure)
    assert sum(path.count("V") for path in bars) == 2 * 2 * 4, "one bar for each score"
    for text in ("strict score, %", "docs_4", "mean ± SD of 3 runs"):
        assert text in figure


def test_without_lengths_there_is_no_figure() -> None:
    assert score_figure([]) is None and lengths_of(["sums", "bills", "rests"]) == [] and lengths_of(["a_2", "a_1", "a_3"]) == []
