"""The console: the line of a step, plain lines outside a terminal, warnings and the table."""

import io
import logging
from pathlib import Path

import pytest
from rich.console import Console as RichConsole

from vime.config import Before, DatasetConfig, RunConfig
from vime.report.console import Console
from vime.report.step_line import Eta, duration, step_line
from vime.report.summary import RunScore, summarize_runs
from vime.report.tables import header_lines

METRICS = {
    "reward/mean": 0.412,
    "reward/strict": 0.412,
    "train/loss": -0.0123,
    "train/grad_norm": 1.2,
    "train/kl": 1e-5,
    "train/logprob_difference_max": 2e-6,
    "rollout/response_tokens_mean": 123.4,
    "time/generation_share": 0.71,
    "time/training_share": 0.24,
    "time/sync_share": 0.03,
    "time/waiting_share": 0.02,
    "time/step_seconds": 4.1,
}


def make_console(terminal: bool = False) -> tuple[Console, io.StringIO]:
    output = io.StringIO()
    return Console(num_steps=60, rich=RichConsole(file=output, force_terminal=terminal, width=120, highlight=False)), output


def test_the_line_of_a_step_says_what_matters() -> None:
    line = step_line(12, 60, METRICS, remaining_seconds=200.0)
    for expected in ("step 12/60", "0.412", "41.2%", "2e-06", "gen  71% train  24% sync   3% wait   2%", "4.1 s", "3m20s"):
        assert expected in line


def test_the_lines_of_steps_have_one_width() -> None:
    extreme = {"train/loss": 12345.678, "train/kl": 0.0, "reward/mean": -1.0, "train/grad_norm": 3e9, "time/step_seconds": 2000.0}
    other = METRICS | extreme
    lines = [step_line(step, 60, metrics, remaining_seconds=9.0) for step in (3, 12) for metrics in (METRICS, other)]
    assert len({len(line) for line in lines}) == 1


def test_a_narrow_terminal_leaves_out_the_less_important_fields() -> None:
    line = step_line(12, 60, METRICS, remaining_seconds=200.0, width=80)
    assert len(line) <= 80 and "reward" in line and "eta" in line and "diff" not in line


def test_a_step_without_rollouts_shows_what_it_has() -> None:
    line = step_line(1, 60, {"train/loss": 0.5, "time/step_seconds": 1.0}, remaining_seconds=59.0)
    assert "reward" not in line and "loss" in line


def test_the_time_left_follows_the_last_steps() -> None:
    eta = Eta(20)
    for step in range(1, 6):
        eta.after(step, 100.0)
    for step in range(6, 15):
        eta.after(step, 2.0)
    assert eta.after(15, 2.0) == 10.0
    assert (duration(48), duration(200), duration(7500)) == ("48s", "3m20s", "2h05m")


def test_outside_a_terminal_a_run_is_plain_lines(tmp_path: Path) -> None:
    console, output = make_console()
    config = RunConfig(name="demo")
    config.data.evaluation = [DatasetConfig(name="docs_24")]
    with console:
        console.header(config, tmp_path)
        console.say("starting Ray")
        with console.progress("evaluating", total=3) as bar:
            bar.advance()
            bar.say("first")
        with console.rollouts(0, 2) as bar:
            bar.advance(2)
        console.step(1, METRICS)
        console.fault({"server": "actor/0", "event": "restarted"})
        logging.getLogger("somewhere").warning("look at %s", "this")
        logging.getLogger("somewhere").info("only in the file")
    text = output.getvalue()
    assert "\x1b" not in text and "\r" not in text
    for expected in ("demo: train", str(tmp_path), "docs_24", "starting Ray", "step  1/60", "actor/0", "look at this"):
        assert expected in text
    assert "only in the file" not in text
    log = (tmp_path / "logs" / "driver.log").read_text()
    assert "look at this" in log and "only in the file" in log


def test_a_closed_console_leaves_no_handler_behind(tmp_path: Path) -> None:
    before = list(logging.getLogger().handlers)
    console, _ = make_console()
    with console:
        console.header(RunConfig(), tmp_path)
    assert logging.getLogger().handlers == before


def test_bars_end_when_their_block_raises() -> None:
    console, output = make_console(terminal=True)
    with console:
        console.say("starting")
        try:
            with console.progress("evaluating", total=3):
                raise ValueError
        except ValueError:
            pass
        with console.rollouts(0, 2) as bar:
            bar.advance(2)
            bar.say("two of two")
        console.step(1, METRICS)
    assert "step  1/60" in output.getvalue()


def test_what_was_broken_off_is_not_called_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vime.report.console.PLAIN_LINE_SECONDS", 0.0)
    console, output = make_console()
    with pytest.raises(KeyboardInterrupt), console:
        with console.progress("evaluating", total=3):
            pass
        console.say("waiting for 1 server")
        with console.progress("evaluating again", total=3):
            raise KeyboardInterrupt
    ends = [
        (line.split(" after ")[0].strip(), line.rpartition(": ")[2])
        for line in output.getvalue().splitlines()
        if " after " in line
    ]
    assert ends == [("evaluating 0/3", "done"), ("waiting for 1 server", "done"), ("evaluating again 0/3", "broken off")]


def test_the_table_shows_every_row_and_where_the_report_is(tmp_path: Path) -> None:
    console, output = make_console()
    runs = [
        RunScore(dataset="docs", row="trained", run=run, temperature=1.0, num_items=2, strict=strict, lenient=[1, 1])
        for run, strict in enumerate([[1.0, 0.0], [1.0, 1.0]])
    ]
    summary = {
        "name": "demo",
        "mode": "train",
        "datasets": {"docs": {"trained": summarize_runs(runs)}},
        "wall_seconds": 65.0,
        "num_steps": 2,
        "num_rollouts": 8,
        "num_failed_rollouts": 1,
    }
    with console:
        console.table(summary, tmp_path / "report.html")
    text = output.getvalue()
    title = "demo: strict (lenient) score, mean ± SD over runs"  # wider than the table
    for expected in (title, "75.0 ± 35.4 (100.0)", "not run", "2 items x 2", "1 min 5 s", "1 of them failed", "report.html"):
        assert expected in text


def test_an_evaluation_by_itself_does_not_call_its_scaffold_untrained() -> None:
    from vime.evaluation.conditions import shown_rows

    assert shown_rows("eval") == {"single_turn": "single turn", "scaffold": "scaffold"}
    assert shown_rows("train")["scaffold"] == "untrained scaffold"


def test_failed_and_retried_rollouts_stand_in_the_line_of_their_step() -> None:
    mishaps = METRICS | {"rollout/num_failed": 3.0, "rollout/num_retries": 5.0}
    assert step_line(12, 60, mishaps, remaining_seconds=200.0).endswith("| 3 failed, 5 retried")
    assert "failed" not in step_line(12, 60, METRICS | {"rollout/num_failed": 0.0}, remaining_seconds=200.0)


def test_what_the_screen_shows_is_in_the_log_once(tmp_path: Path) -> None:
    console, output = make_console()
    with console:
        console.header(RunConfig(), tmp_path)
        console.scores("single_turn", 0, {"docs_20": 41.04})
        console.step(1, METRICS)
        logging.getLogger("somewhere").warning("look")
        console.warn("told by hand")
    log = (tmp_path / "logs" / "driver.log").read_text()
    for text in ("evaluated single turn after step 0: docs_20 41.0", "step  1/60", "look", "told by hand"):
        assert output.getvalue().count(text) == 1 == log.count(text), text


def test_the_header_counts_every_rollout_of_the_evaluation(tmp_path: Path) -> None:
    config = RunConfig()
    config.data.evaluation = [DatasetConfig(name=name, num_items=100) for name in ("docs_20", "docs_40")]
    config.evaluation.num_runs, config.evaluation.extra_temperatures = 3, [0.0]
    text = "\n".join(header_lines(config, tmp_path))
    assert "the scaffold also once at temperature 0; 2,000 rollouts" in text, "3 rows x 3 runs x 200, and 200"
    config.evaluation.before = Before.none
    text = "\n".join(header_lines(config, tmp_path))
    assert "600 rollouts" in text and "temperature 1: trained scaffold\n" in text, "the trained row alone"
    config.evaluation.before = Before.one_run
    assert "the untrained scaffold once, during the first batch" in "\n".join(header_lines(config, tmp_path))
