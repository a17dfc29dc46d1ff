"""This checkout beside another: who runs when, what the ratio of the pairs says, and when a benchmark ends with 1."""

import argparse
import json
import random
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "tools"))
import against
from against import Number, Ratio
from bench_rows import Result

SIDE = """
import json, os, pathlib, sys
speed = float((pathlib.Path.cwd() / "speed").read_text())
with open(sys.argv[1], "a") as file:
    file.write(f"{pathlib.Path.cwd().name} {os.environ['PYTHONPATH']} {sys.argv[2]}\\n")
print("something else")
numbers = {"rate": {"value": speed, "unit": "tokens/s"}, "cost": {"value": 1 / speed, "unit": "s", "is_cost": True}}
print(json.dumps(numbers))
"""


@pytest.fixture
def checkouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders `this` and `other`, each with a benchmark of its own; this one is a tenth slower."""
    for name, speed in (("this", 90), ("other", 100)):
        (tmp_path / name / "tools").mkdir(parents=True)
        (tmp_path / name / "tools" / "bench_side.py").write_text(SIDE)
        (tmp_path / name / "speed").write_text(str(speed))
    monkeypatch.setattr(against, "ROOT", tmp_path / "this")
    monkeypatch.setattr(against, "commit_of", lambda checkout: "0123456789")
    return tmp_path


def compare(folder: Path) -> list[dict[str, float]]:
    """Runs four pairs; returns the rows that were written."""
    options = argparse.Namespace(against=folder / "other", pairs=4, json=folder / "rows.json", markdown=None)
    against.compare(Result(title="sides"), options, "bench_side.py", [str(folder / "turns")])
    return json.loads((folder / "rows.json").read_text())


def test_each_side_runs_its_own_program_and_is_first_in_every_second_pair(checkouts: Path):
    with pytest.raises(SystemExit):
        compare(checkouts)
    turns = [line.split() for line in (checkouts / "turns").read_text().splitlines()]
    assert [turn[0] for turn in turns] == ["this", "other", "other", "this"] * 2
    assert all(turn[1:] == [str(checkouts / turn[0]), "--numbers"] for turn in turns)


def test_a_slower_checkout_ends_with_1_and_is_named_in_rates_and_costs(checkouts: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        compare(checkouts)
    assert ended.value.code == 1
    said = capsys.readouterr().out
    assert "Below 0.97: rate." in said and "Below 0.97: cost." in said and "0.900 (0.900 to 0.900)" in said
    rows = json.loads((checkouts / "rows.json").read_text())
    assert [row["ratio"] for row in rows] == pytest.approx([0.9, 0.9]) and rows[1]["unit"] == "s; less is better"


def test_a_checkout_that_is_as_quick_passes(checkouts: Path):
    (checkouts / "this" / "speed").write_text("99")
    assert [row["ratio"] for row in compare(checkouts)] == pytest.approx([0.99, 0.99])


def test_a_side_that_fails_is_named_with_what_it_said(checkouts: Path):
    (checkouts / "other" / "speed").write_text("none")
    with pytest.raises(RuntimeError, match=r"other: bench_side.py ended with 1(.|\n)*could not convert string to float: 'none'"):
        compare(checkouts)


def test_what_happens_to_both_of_a_pair_falls_out_of_the_ratio_and_one_bad_pair_changes_little():
    generator = random.Random(0)
    loads = [generator.lognormvariate(0.0, 1.0) for _ in range(8)]
    others = [Number(value=100 * load, unit="tokens/s") for load in loads]
    ours = [Number(value=95 * load * generator.uniform(0.99, 1.01), unit="tokens/s") for load in loads]
    ratio = Ratio.of(ours, others)
    assert 0.94 < ratio.low <= ratio.middle <= ratio.high < 0.96
    spoiled = Ratio.of([Number(value=1.0, unit="tokens/s"), *ours[1:]], others)
    assert spoiled.low <= spoiled.middle <= spoiled.high and abs(spoiled.middle - ratio.middle) < 0.01
