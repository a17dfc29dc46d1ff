"""The terminal shows the run's numbers, within its width, and no text of a run can control it."""

import math
import re
from pathlib import Path

import pytest
from rich.console import Console

from tests.report.test_html import make_run
from tests.view.test_rollout_index import item, rollout
from vime.files.jsonl import append_line, write_lines
from vime.report.ending import RunEnding, write_ending
from vime.view.runs import Runs
from vime.view.terminal import HEIGHT, chart, screen


@pytest.mark.parametrize("values", [[1.0], [0.0, 0.0], [3.0, math.nan, 5.0], [float(n) for n in range(500)], [-1e-9, 1e9]])
@pytest.mark.parametrize("width", [30, 80])
def test_a_chart_keeps_its_width_and_height_and_names_its_ends(values: list[float], width: int):
    lines = chart((list(range(len(values))), values), width).plain.split("\n")
    assert len(lines) == HEIGHT + 1 and max(map(len, lines[:-1])) <= width
    assert any(sign in lines[HEIGHT - 1] for sign in "▁▂▃▄▅▆▇█")


def test_a_curve_that_rises_is_drawn_rising():
    lines = chart((list(range(10)), [float(n) for n in range(10)]), 40).plain.split("\n")
    filled = [line.count("█") for line in lines[:HEIGHT]]
    assert filled == sorted(filled) and filled[0] < filled[-1]


def test_the_screen_shows_curves_rollouts_and_faults_and_no_control_characters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    directory = make_run(tmp_path / "outputs" / "run")
    (directory.path / "rollouts").mkdir()
    rows = [{"step": n, "time": 1.0, "reward/mean": n / 8, "time/step_seconds": 2.0} for n in range(1, 6)]
    more = {"train/loss": 0.5, "train/grad_norm": 1.0, "rollout/response_tokens_mean": 50.0, "train/logprob_difference_max": 0.0}
    write_lines(directory.path / "metrics.jsonl", [row | more for row in rows])
    lines = [rollout(1, n, stop_reason="time\x1b]0;limit", reward=0.4375) for n in range(3)]
    write_lines(directory.path / "rollouts" / "step_000001.jsonl", lines)
    (directory.path / "evaluation").mkdir(exist_ok=True)
    write_lines(directory.path / "evaluation" / "docs-trained-t1-run0.jsonl", [item(n, dataset="held_out") for n in range(20)])
    append_line(directory.path / "faults.jsonl", {"step": 3, "event": "\x1b[2Jrestarted [bold]"})
    console = Console(width=80, record=True, file=(tmp_path / "out").open("w"), color_system=None)
    console.print(screen(Runs([directory.path]).all()[0], width=80))
    text = console.export_text()
    for word in ("reward/mean, reward", "last 0.625", "0.4375", "3m10s left", "restarted [bold]", "limit"):
        assert word in text, word
    assert "\x1b" not in text and "held_out" not in text
    assert re.search(r"^step +5/100 .*eta +3m10s$", text, re.MULTILINE), "the line of the step is not broken"


def test_a_run_that_ended_before_its_time_shows_its_error_and_no_time_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    directory = make_run(tmp_path / "outputs" / "run")
    write_lines(directory.path / "metrics.jsonl", [{"step": 5, "time": 1.0, "reward/mean": 0.5, "time/step_seconds": 2.0}])
    told = "Traceback …\nValueError: \x1b[2Jno such column"
    ending = RunEnding(error="ValueError", text=told, step=5, num_steps=100, checkpoint=4, go_on="python -m vime.run resume=true")
    write_ending(directory.path, ending)
    console = Console(width=80, record=True, file=(tmp_path / "out").open("w"), color_system=None)
    console.print(screen(Runs([directory.path]).all()[0], width=80))
    text = console.export_text()
    assert "ValueError after 5 of 100 steps; the last checkpoint is of step 4" in text
    assert "no such column" in text and "resume=true" in text and " left" not in text and "\x1b" not in text
