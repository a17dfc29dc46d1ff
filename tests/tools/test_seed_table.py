"""Tables over seeds: every item counts, seeds occur once, and only the metrics that were asked for are columns."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[2] / "tools"))
import seed_table


def run(seed: int, *scores: float) -> Any:
    items = [{"metrics": {"strict": score, "turns": 3.0}} for score in scores]
    failed: dict[str, Any] = {"metrics": {}}
    return SimpleNamespace(name="sums", about={"seed": seed}, items={("test", "trained"): [*items, failed]}, curve=[(1, 0.5)])


def test_failed_items_count_as_zero_and_the_spread_is_over_seeds():
    found = seed_table.section("sums", [run(0, 1.0, 1.0, 1.0), run(1, 1.0, 0.0, 0.0)], ["strict"])
    assert found["scores"] == {"test": {"trained": {"strict": [75.0, 25.0]}}}
    assert seed_table._spread([75.0, 25.0]) == "50.0 ± 35.4" and seed_table._spread([75.0]) == "75.0"


def test_each_run_has_its_value_and_the_worst_is_named():
    found = seed_table.section("sums", [run(0, 1.0, 1.0, 1.0), run(1, 1.0, 0.0, 0.0)], ["strict"])
    assert seed_table._each_run(found)[2] == "| test, trained scaffold | 75.0 | 25.0 | seed 1 |"
    assert not seed_table._each_run(seed_table.section("sums", [run(0, 1.0)]))


def test_all_metrics_are_columns_unless_some_are_asked_for():
    assert list(seed_table.section("sums", [run(0, 1.0)])["scores"]["test"]["trained"]) == ["strict", "turns"]


def test_a_seed_that_occurs_twice_is_refused():
    with pytest.raises(ValueError, match="one run of each seed, not 0, 0"):
        seed_table.section("sums", [run(0, 1.0), run(0, 1.0)])


def test_a_page_keeps_its_other_recipes_if_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    about: dict[str, Any] = dict.fromkeys(seed_table.ABOUT, "-") | {"seed": 0, "command": "run"}
    for name, keep in (("sums", ()), ("games", ("--keep",)), ("sums", ("--keep",))):
        found = run(0, 1.0)
        found.name, found.about = name, about
        monkeypatch.setattr(seed_table, "find_runs", lambda paths: paths)
        monkeypatch.setattr(seed_table, "read_our_run", lambda path, found=found: found)
        seed_table.main([str(tmp_path), "--out", str(tmp_path / "page"), *keep])
    text = (tmp_path / "page.md").read_text()
    assert text.index("## games") < text.index("## sums") and text.count("## sums") == 1
