"""The report is built from the files of a folder, whatever is there yet."""

import json
import math
import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

from vime.config import DatasetConfig, RunConfig
from vime.files.provenance import plain
from vime.report.axes import y_axis
from vime.report.charts import Series, line_chart, smoothing
from vime.report.html import with_ends, write_report
from vime.report.metrics_file import MetricsWriter
from vime.report.run_directory import RunDirectory
from vime.report.summary import RunScore, append_scores, summarize_runs
from vime.types import EvalLog


def make_run(path: Path) -> RunDirectory:
    config = RunConfig(name="demo")
    config.data.evaluation = [DatasetConfig(name="docs_24"), DatasetConfig(name="docs_48")]
    config.evaluation.num_runs = 2
    directory = RunDirectory(path)
    directory.evaluation.mkdir(parents=True)
    (path / "config.yaml").write_text(yaml.safe_dump(plain(config)))
    return directory


def scores(row: str, run: int, strict: list[float], dataset: str = "docs_24") -> RunScore:
    return RunScore(
        dataset=dataset, row=row, run=run, temperature=1.0, num_items=len(strict), strict=strict, lenient=[1.0] * len(strict)
    )


class Balance(HTMLParser):
    """Fails on a tag that closes what is not open."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def page_of(path: Path) -> str:
    text = write_report(path).read_text()
    parser = Balance()
    parser.feed(text)
    assert parser.open == []
    assert not re.search(r'(src|href)="|https?://', text.split("<h2>Where it comes from")[0]), "the page needs no network"
    return text


def test_a_folder_with_only_a_configuration_gives_a_page(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    text = page_of(tmp_path / "run")
    assert "unfinished" in text and "demo" in text and "NaN" not in text


def test_an_unfinished_run_shows_its_curves_and_complete_rows_only(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "run")
    writer = MetricsWriter(directory.path / "metrics.jsonl")
    for step in range(1, 31):
        loss = math.nan if step == 5 else 0.1 * step
        writer.log(step, {"reward/mean": step / 40, "train/loss": loss, "stop/answered": 8, "time/generation_share": 0.7})
    with (directory.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 31, "rew')
    append_scores(directory.path, [scores("single_turn", run, [1, 0, 0, 0]) for run in range(2)])
    append_scores(directory.path, [scores("scaffold", 0, [1, 1, 1, 0])])
    text = page_of(directory.path)
    assert "unfinished" in text and "30 / 100" in text
    assert "25.0 ± 0.0" in text, "the complete row"
    assert "75.0" not in text and "1 of 2 runs" in text, "a row of which a run is missing has no score"
    for title in ("Reward", "Loss", "Stop reasons", "Share of a step"):
        assert f"<figcaption>{title}" in text


def test_a_complete_run_shows_its_numbers(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "run")
    rows = {
        "scaffold": summarize_runs([scores("scaffold", 0, [1, 0, 0, 0]), scores("scaffold", 1, [1, 1, 0, 0])]),
        "trained": summarize_runs([scores("trained", 0, [1, 1, 1, 1]), scores("trained", 1, [1, 1, 1, 0])]),
    }
    summary = {
        "datasets": {"docs_24": rows, "docs_48": rows},
        "untrained_temperatures": {"docs_24": {"0.0": 31.25}},
        "wall_seconds": 251.0,
        "first_step_seconds": 48.0,
        "num_rollouts": 7680,
        "num_failed_rollouts": 3,
        "machine": {"num_cores": 2, "load_average": [1.5, 1.0, 1.0], "matmul_gflops_float32": 310.0},
    }
    (directory.path / "summary.json").write_text(json.dumps(summary))
    figure = {"x": [1, 2], "series": {"gold answer": [0.3, None]}}
    directory.write_eval_log("docs_24-trained", EvalLog(metrics={"turns_mean": 3.25}, figures={"recall_by_chunk": figure}))
    directory.write_fault(12, {"server": "actor/0", "event": "restarted <b>"})
    text = page_of(directory.path)
    for expected in ("37.5 ± 17.7", "87.5 ± 17.7", "not run", "31.2", "4m11s", "7,680", "3.25", "recall by chunk"):
        assert expected in text, expected
    assert ">finished<" in text and "restarted &lt;b&gt;" in text and "Score by data set" in text


def test_data_sets_named_by_length_become_a_line() -> None:
    from vime.report.sections import score_charts

    row = summarize_runs([scores("trained", 0, [1, 0])])
    (chart,) = score_charts({f"docs_{length}": {"trained": row} for length in (24, 48, 96)}, {"trained": "trained scaffold"})
    assert "Score by length" in chart and "docs_96" in chart


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="not a run folder"):
        write_report(tmp_path)


@pytest.mark.parametrize("values", [[1.0], [0.0, 0.0], [-2.0, -2.0], [1e-9, 1.0], [math.inf, 1.0], [5e6, 4e6]])
def test_charts_of_odd_values_hold_finite_coordinates(values: list[float]) -> None:
    chart = line_chart("odd", [Series(label="a", x=[float(i) for i in range(len(values))], y=values)])
    coordinates = re.findall(r'(?:d|x|y)="([^"]*)"', chart)
    assert coordinates and not any("nan" in text or "inf" in text for text in coordinates)


def test_a_chart_without_finite_values_is_left_out() -> None:
    assert line_chart("none", [Series(label="a", x=[1.0], y=[math.nan])]) == ""


def test_smoothing_keeps_a_constant_and_bridges_missing_values() -> None:
    assert smoothing([2.0] * 50) == pytest.approx([2.0] * 50)
    assert smoothing([1.0, math.nan, 1.0]) == pytest.approx([1.0, 1.0, 1.0])


def test_a_smoothed_line_starts_at_the_data_and_does_not_rise_before_them() -> None:
    jump = [0.1] * 30 + [0.9] * 30
    assert smoothing(jump)[:30] == pytest.approx([0.1] * 30)
    assert smoothing([0.055, 0.3, 0.3])[0] == 0.055


def test_steps_have_whole_marks_and_close_values_marks_that_differ() -> None:
    short = line_chart("a", [Series(label="a", x=[1.0, 2.0, 3.0], y=[0.0, 1.0, 2.0])])
    assert not re.search(r'class="tick mid"[^>]*>\d+\.\d', short), "no step 1.2"
    near = line_chart("b", [Series(label="b", x=[1.0, 2.0], y=[1.0, 1.004])])
    marks = re.findall(r'class="tick end"[^>]*>([^<]+)', near)
    assert len(marks) == len(set(marks)) > 1


@pytest.mark.parametrize("value", [5.0, -2.0, 3e-7])
def test_a_constant_is_drawn_on_an_axis_from_0_and_not_around_itself(value: float) -> None:
    axis = y_axis([value, value])
    ends = sorted([axis.low, axis.high], key=abs)
    assert ends[0] == 0 and abs(value) < abs(ends[1]) < 2 * abs(value)


def test_what_does_not_change_is_named_and_not_drawn() -> None:
    from vime.report.sections import still_metrics, training_charts

    steps = [1, 2, 3]
    found = {
        "train/kl": (steps, [0.0, 0.0, 0.0]),
        "train/lr": (steps, [1e-6, 1e-6, 1e-6]),
        "rollout/turns_mean": (steps, [1.5, 2.0, 2.5]),
        "rollout/sequences_mean": (steps, [1.0, 1.0, 1.0]),
    }
    (chart,) = training_charts(found)
    assert "Turns per rollout" in chart and "unchanged: training sequences 1" in chart and ">per rollout<" in chart
    assert "KL to the reference: KL" in still_metrics(found) and "3 metrics that did not change" in still_metrics(found)


def test_held_out_curves_have_the_untrained_start_and_the_trained_end() -> None:
    rows = {
        "scaffold": summarize_runs([scores("scaffold", 0, [0, 0])]),
        "trained": summarize_runs([scores("trained", 0, [1, 0])]),
    }
    assert with_ends({"evaluation/a": ([5], [10.0])}, {"a": rows}, num_steps=9) == {
        "evaluation/a": ([0, 5, 9], [0.0, 10.0, 50.0])
    }
    assert with_ends({}, {"a": {"scaffold": rows["scaffold"]}}, num_steps=9) == {}, "one point is no curve"


def test_a_figure_of_many_evaluations_is_one_chart_and_many_metrics_a_long_table() -> None:
    from vime.report.log_section import LINES, eval_log_section

    figure = {"x": [1, 2], "series": {"recall": [0.5, 1.0], "precision": [1.0, 0.5]}}
    names = [f"docs_{size}-{row}" for row in ("scaffold", "trained") for size in (20, 40, 80)]
    page = eval_log_section(
        {name: {"metrics": {"turns": 2.0}, "figures": {"by chunk": figure}} for name in names}, ["docs_20", "docs_40", "docs_80"]
    )
    assert page.count("<figure>") == 1 and page.count('class="line') <= LINES and "2 earlier evaluations" in page
    assert "docs_80-trained: recall" in page and page.count("<table>") == 3 and "<th>trained</th>" in page


def test_evaluations_with_other_categories_share_a_chart_in_which_each_keeps_its_name() -> None:
    from vime.report.log_section import eval_log_section

    few = {"x": ["answer", "search"], "series": {"calls": [1.0, 2.0]}}
    more = {"x": ["call_expert", "get_order", "search"], "series": {"calls": [3.0, 4.0, 5.0]}}
    for first, second in ((few, more), (more, few)):
        page = eval_log_section(
            {"a-trained": {"figures": {"calls": first}}, "b-trained": {"figures": {"calls": second}}}, ["a", "b"]
        )
        hover = json.loads(unescape(page.split('data-hover="')[1].split('"')[0]))
        shown = {heading: [value for _, _, value in values] for _, heading, values in hover}
        assert {name: sorted(values) for name, values in shown.items()} == {
            "answer": ["1"],
            "search": ["2", "5"],
            "call_expert": ["3"],
            "get_order": ["4"],
        }
