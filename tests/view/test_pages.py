"""The pages in a real browser: a run in progress, its rollouts, tokens and branches, and two runs compared.

Whatever a model or a run wrote is text there: every text of the runs here is a script that would open a dialog.
"""

import csv
import io
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.chosen import parameters
from vime.config import DatasetConfig, RolloutDetail, RunConfig
from vime.files.jsonl import write_lines
from vime.files.provenance import plain
from vime.files.record import Recorder
from vime.model.pieces import TokenPieces
from vime.report.charts import smoothing
from vime.report.ending import RunEnding, write_ending
from vime.report.html import write_report
from vime.report.metrics_file import MetricsWriter
from vime.report.run_directory import LOCK, RunDirectory
from vime.report.summary import RunScore, append_scores
from vime.service.model_runs import ModelRuns
from vime.types import Group, Prompt, Rollout, Sample, StopReason

pytestmark = pytest.mark.slow
sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium")
WINDOWS = [("light", 800), ("dark", 1440), ("dark", 800), ("light", 1440)]
"""Schemes and widths; only the long tests take the last two."""
if CHROMIUM is None:
    pytest.skip("there is no chromium", allow_module_level=True)

SCRIPT = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
WORDS = [
    b"<|im_start|>user\n",
    b"Question ",
    b"<b>reply</b> ",
    b"<img src=x onerror=alert(3)>",
    b" found",
    "\u00e4".encode()[:1],
    "\u00e4".encode()[1:],
]
LOGPROBS = [-0.25, -3.5, -0.5, -1.0, -0.125, -2.0]
MILLISECONDS = 60_000
"""Longest wait for anything."""


def sample_of(start: list[int], reply: list[int]) -> Sample:
    """A sequence with a prompt of two tokens; the first reply token after `start` begins another branch."""
    response = [*start, *reply]
    return Sample(
        tokens=[0, 1, *response],
        response=SCRIPT,
        response_length=len(response),
        loss_mask=[1] * len(response),
        rollout_log_probs=LOGPROBS[: len(response)],
        weight_versions=[number // 2 for number in range(len(response))],
        metadata={"kind": "main", "note": SCRIPT},
    )


def write_step(directory: RunDirectory, step: int, *, num_groups: int = 3) -> None:
    """Groups of four rollouts; in each the last two are solved and the second ran out of time, once before any reply."""
    groups, advantages, logprobs = [], {}, {}
    for number in range(num_groups):
        index = step * num_groups + number
        rollouts = []
        for member in range(4):
            stop = StopReason.TIME_LIMIT if member == 1 else StopReason.ANSWERED
            is_early = member == 1 and number == num_groups - 1  # before the first reply
            samples = [] if is_early else [sample_of([2, 3, 4], [5, 6]), sample_of([2, 3], [4, 2, 2])]
            rollouts.append(
                Rollout(
                    rollout_id=index * 1_000_000 + member,
                    group_index=index,
                    samples=samples,
                    reward=member / 3 if member > 1 else 0.0,
                    stop_reason=stop,
                    error=SCRIPT,
                    generation_seconds=1.5,
                    seconds={"generation": 1.0, "tool": 0.5},
                )
            )
            advantages[rollouts[-1].rollout_id] = member - 1.5
            logprobs |= {id(s.tokens): np.array(s.rollout_log_probs, np.float32) + np.float32(0.125) for s in samples}
        prompt = Prompt(
            index=index, row=number, messages=[{"role": "user", "content": SCRIPT}], ground_truth=[SCRIPT], dataset="train"
        )
        groups.append(Group(prompt=prompt, rollouts=rollouts))
    recorder = Recorder(RolloutDetail.tokens, TokenPieces(WORDS).text)
    directory.write_rollouts(step, groups, recorder=recorder, advantages=advantages, logprobs=logprobs)


def write_run(path: Path, *, seed: int) -> RunDirectory:
    """A run in progress with everything that a page shows."""
    config = RunConfig(name=f"demo {SCRIPT}", seed=seed)
    config.data.evaluation = [DatasetConfig(name="docs")]
    config.evaluation.num_runs = 1
    directory = RunDirectory(path)
    for folder in (directory.rollouts, directory.evaluation, directory.logs):
        folder.mkdir(parents=True)
    (path / "config.yaml").write_text(yaml.safe_dump(plain(config)))
    (directory.logs / "driver.log").write_text(SCRIPT + "\n")
    directory.write_vocabulary(TokenPieces(WORDS))
    directory.write_fault(3, {"server": "actor/0", "event": SCRIPT})
    for step in range(1, 6):
        log(directory, step, seed)
    write_step(directory, 1)
    for row, good in (("scaffold", 0.0), ("trained", 1.0)):
        append_scores(
            path, [RunScore(dataset="docs", row=row, run=0, temperature=1.0, num_items=2, strict=[good, 1.0], lenient=[1.0, 1.0])]
        )
        about = {
            "row": row,
            "run": 0,
            "evaluation": "",
            "temperature": 1.0,
            "version": 5 if row == "trained" else 0,
            "failed": False,
            "metrics": {},
        }
        about |= {
            "label": [SCRIPT],
            "stop_reason": "answered",
            "error": "",
            "dataset": "docs",
            "messages": [],
            "generation_seconds": 1.0,
        }
        items = [
            {**about, "index": n, "item": f"digest {n}", "strict": good if n == 0 else 1.0, "lenient": 1.0} for n in range(2)
        ]
        lines = [{**item, "samples": [{"response": SCRIPT, "metadata": {}}]} for item in items]
        write_lines(directory.evaluation / f"docs-{row}-t1-run0.jsonl", lines)
    protocol = {"datasets": {"docs": {"num_items": 2}}}
    (directory.evaluation / "protocol.yaml").write_text(yaml.safe_dump(protocol))
    return directory


def log(directory: RunDirectory, step: int, seed: int) -> None:
    metrics = {"reward/mean": 0.1 * step + seed, "time/step_seconds": 2.0, "time/generation_share": 0.75, f"count/{SCRIPT}": step}
    MetricsWriter(directory.path / "metrics.jsonl").log(step, metrics)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunDirectory]:
    folder = tmp_path_factory.mktemp("outputs")
    for number in range(2):
        ended = write_run(folder / "sweep" / str(number), seed=number)
        ending = RunEnding(error="ValueError", text=SCRIPT, step=5, num_steps=100, checkpoint=None, go_on="python -m vime.run")
        write_ending(ended.path, ending)
    return {name: write_run(folder / name, seed=seed) for seed, name in enumerate(("first", "second"))}


@pytest.fixture(scope="module")
def address(runs: dict[str, RunDirectory], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address that the program prints."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}
    command = [sys.executable, "-m", "vime.view", "--port", "0", str(runs["first"].path.parent)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+/\?token=\S+", line)
        assert found is not None, line + process.stderr.read()
        yield found[0]
        process.terminate()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    """A page at the list of runs; at its end nothing may have been complained about, and no dialog opened."""
    complaints: list[str] = []
    made = browser.new_page(viewport={"width": 1440, "height": 1000})
    made.set_default_timeout(MILLISECONDS)
    made.on("console", lambda message: complaints.append(message.text) if message.type in ("error", "warning") else None)
    made.on("pageerror", lambda error: complaints.append(str(error)))
    made.on("dialog", lambda dialog: (complaints.append(f"dialog {dialog.message}"), dialog.dismiss()))
    made.goto(address)
    yield made
    made.close()
    assert complaints == []


def curve(page: Any, title: str, series: int = 0) -> list[float]:
    """The values of a chart that is drawn, smoothed or not."""
    script = """([title, series]) => {
        const plot = [...document.querySelectorAll('.plot')].find((one) => one.getAttribute('aria-label') === title);
        return plot?.data?.[series]?.y ?? [];
    }"""
    return page.evaluate(script, [title, series])


def wait_for(page: Any, value: Callable[[], Any], wanted: Any) -> None:
    for _ in range(MILLISECONDS // 100):
        if value() == wanted:
            return
        page.wait_for_timeout(100)
    assert value() == wanted


def test_the_token_leaves_the_address_and_a_page_without_it_is_refused(page: Any, address: str, browser: Any):
    page.get_by_role("link", name="first").wait_for()
    assert "token" not in page.url
    page.reload()
    page.get_by_role("link", name="first").wait_for()
    other = browser.new_page()
    assert other.goto(address.partition("?")[0]).status == 403
    other.close()


def test_the_curve_of_a_run_in_progress_grows(page: Any, runs: dict[str, RunDirectory]):
    page.get_by_role("link", name="first").click()
    wait_for(page, lambda: curve(page, "Reward"), [0.1 * step for step in range(1, 6)])
    assert SCRIPT in page.locator("h1").inner_text() and page.get_by_text("restart", exact=False).count() == 0
    log(runs["first"], 6, 0)
    wait_for(page, lambda: curve(page, "Reward"), [0.1 * step for step in range(1, 7)])
    assert "6 / 100" in page.locator(".tiles").inner_text()


def test_a_service_shows_its_models_which_lead_to_their_curves(page: Any, runs: dict[str, RunDirectory]):
    folder = runs["first"].path.parent / "service"
    models = ModelRuns(RunConfig(name=f"service {SCRIPT}"), folder)
    models.begin("a:train:0", seed=0, rank=8, targets=[])
    shown = {
        "name": SCRIPT,
        "run": "a_train_0",
        "client": "9c",
        "rank": 8,
        "num_steps": 2,
        "num_open_calls": 3,
        "checkpoints": [SCRIPT],
    }
    place = {"name": "place0", "holds": SCRIPT, "num_users": 1}
    models.write_status(
        {"models": [shown | {"loss": 0.5, "checkpoints": [SCRIPT]}], "places": [place], "num_sessions": 1, "num_open_samples": 4}
    )
    for step in (1, 2):
        models.note("a:train:0", step, {"train/loss": 1 / step})
    page.reload()
    page.get_by_role("link", name="service", exact=True).click()
    page.get_by_role("heading", name="Weights on the servers").wait_for()
    assert "4\nopen samples" in page.locator(".tiles").last.inner_text()
    page.get_by_role("link", name=SCRIPT).click()
    wait_for(page, lambda: curve(page, "Loss"), [1.0, 0.5])


def test_a_log_that_is_chosen_stays_and_grows_while_steps_come(page: Any, runs: dict[str, RunDirectory]):
    folder = runs["first"].path.parent / "sweep" / "1"
    page.get_by_role("link", name="sweep/1", exact=True).click()
    chosen = page.locator("section select")
    chosen.select_option("driver.log")
    said = page.get_by_label("console")
    wait_for(page, lambda: said.inner_text(), SCRIPT + "\n")
    with (folder / "logs" / "driver.log").open("a") as file:
        file.write("another line\n")
    log(RunDirectory(folder), 6, 1)
    wait_for(page, lambda: said.inner_text(), SCRIPT + "\nanother line\n")
    assert chosen.input_value() == "driver.log"


def test_a_rollout_is_found_by_reward_and_stop_reason_and_read_token_by_token(page: Any, runs: dict[str, RunDirectory]):
    of_first = page.get_by_role("row").filter(has=page.get_by_role("link", name="first", exact=True))
    of_first.get_by_role("link", name="rollouts").click()
    page.get_by_text("1 to 12 of 12 rollouts").wait_for()
    assert page.locator("select[name=kind]").input_value() == "training"
    page.locator("select[name=stop_reason]").select_option("time_limit")
    page.get_by_text("1 to 3 of 3 rollouts").wait_for()
    page.locator("select[name=stop_reason]").select_option("answered")
    page.locator("input[name=min_reward]").fill("0.5")
    page.locator("input[name=min_reward]").press("Enter")
    page.get_by_text("1 to 6 of 6 rollouts").wait_for()
    page.locator("select[name=kind]").select_option("any")
    page.get_by_text("1 to 9 of 9 rollouts").wait_for()
    page.reload()
    page.get_by_text("1 to 9 of 9 rollouts").wait_for()
    page.locator("select[name=kind]").select_option("training")
    page.get_by_text("1 to 6 of 6 rollouts").wait_for()
    page.locator("h1").click()
    for key in ("j", "j", "k", "Enter"):
        page.keyboard.press(key)
    page.get_by_role("button", name="logprob").click()
    tokens = page.locator("#tokens .token")
    wait_for(page, lambda: "".join(tokens.all_inner_texts()), "<b>reply</b> <img src=x onerror=alert(3)> foundä")
    colors = tokens.evaluate_all("all => all.map((one) => one.style.backgroundColor)")
    assert len(colors) == 5 and len(set(colors)) == 5
    tokens.nth(1).hover()
    assert re.search(r"logprob +-3\.5\n", page.locator(".tip").inner_text())
    assert re.search(r"trainer's +-3\.375\n", page.locator(".tip").inner_text())
    for mode in ("mask", "difference to the trainer", "advantage", "weight version"):
        page.get_by_role("button", name=mode).click()
        page.locator(f"button[aria-pressed=true]:text-is('{mode}')").wait_for()
        assert all(tokens.evaluate_all("all => all.map((one) => one.style.backgroundColor !== '')"))
    assert "leaves 1 after 5 tokens" in page.locator("#branches").inner_text()
    page.keyboard.press("ArrowRight")
    page.get_by_role("heading", name="Sequence 2").wait_for()
    page.get_by_role("button", name="turns").click()
    assert page.locator(".turn.reply").inner_text().count("<b>reply</b>") == 3
    page.get_by_role("link", name="Its group side by side").click()
    page.get_by_text("4 rollouts, mean reward").wait_for()
    wait_for(page, page.locator(".beside .reward").all_inner_texts, ["0", "0", "0.6667", "1"])


def test_the_number_of_an_item_leads_to_its_group_or_to_its_evaluations(page: Any):
    page.evaluate("location.hash = '#rollouts?run=first&kind=training&sort=step'")
    page.get_by_text("1 to 12 of 12 rollouts").wait_for()
    page.locator("tbody td:nth-child(3) a").first.click()
    page.get_by_text("4 rollouts, mean reward").wait_for()
    page.evaluate("location.hash = '#rollouts?run=first&kind=evaluation'")
    page.get_by_text("1 to 4 of 4 rollouts").wait_for()
    page.locator("tbody td:nth-child(3) a").first.click()
    page.get_by_role("heading", name="trained (weights of step 5)").wait_for()


def test_rollouts_in_the_order_of_advantages_open_in_its_colour(page: Any):
    page.evaluate("location.hash = '#rollouts?run=first'")
    page.get_by_role("button", name="advantage", exact=True).click()
    page.wait_for_url("**sort=advantage**")
    page.get_by_text("1 to 12 of 12 rollouts").wait_for()
    page.locator("tbody a").first.click()
    page.locator("button[aria-pressed=true]:text-is('advantage')").wait_for()
    assert all(page.locator("#tokens .token").evaluate_all("all => all.map((one) => one.style.backgroundColor !== '')"))
    page.get_by_role("button", name="turns", exact=True).click()
    page.reload()
    page.locator("button[aria-pressed=true]:text-is('turns')").wait_for()


def test_the_page_smooths_as_the_report_does(page: Any):
    values = [math.sin(number) if number % 7 else math.nan for number in range(1, 90)]
    script = "async (values) => (await import('/pages/chart.js')).smooth(values, values.length / 40)"
    found = page.evaluate(script, [None if math.isnan(value) else value for value in values])
    assert found == pytest.approx(smoothing(values))
    assert smoothing(values)[0] == values[0]


def test_a_timeline_of_few_calls_has_a_tick_for_each(page: Any):
    script = """async (timeline) => {
        const { timelineChart } = await import('/pages/timeline.js');
        document.getElementById('main').replaceChildren(timelineChart({ timeline }, {}));
    }"""
    spans = [{"kind": kind, "name": kind, "start": start, "seconds": 0.5} for start, kind in enumerate(("queue", "generation"))]
    page.get_by_role("link", name="first").wait_for()
    page.evaluate(script, spans)
    page.locator(".ytick text").first.wait_for()
    assert sorted(page.locator(".ytick text").all_text_contents()) == ["1", "2"]


@pytest.mark.parametrize(("seconds", "is_drawn"), [({}, False), ({"queue": 0.0}, False), ({"queue": 0.0, "tool": 0.5}, True)])
def test_a_rollout_that_was_not_traced_has_no_empty_chart(page: Any, seconds: dict[str, float], is_drawn: bool):
    script = "async (line) => (await import('/pages/timeline.js')).timelineChart({ timeline: [] }, line) != null"
    page.get_by_role("link", name="first").wait_for()
    assert page.evaluate(script, {"seconds": seconds}) is is_drawn


def test_a_curve_that_stays_at_0_is_drawn_at_the_bottom(page: Any):
    script = """async () => {
        const { chart } = await import('/pages/chart.js');
        const series = [{ label: 'all', x: [1, 2, 3], y: [0, 0, 0] }];
        document.getElementById('main').replaceChildren(chart({ title: 'Zeros', unit: '', series }).node);
    }"""
    page.get_by_role("link", name="first").wait_for()
    page.evaluate(script)
    wait_for(page, lambda: curve(page, "Zeros"), [0, 0, 0])
    assert page.locator(".plot").evaluate("plot => plot.layout.yaxis.range") == [0, 1]


def test_the_console_opens_at_its_end_and_stays_there(page: Any, runs: dict[str, RunDirectory]):
    folder = runs["first"].path.parent / "sweep" / "1"
    page.get_by_role("link", name="sweep/1", exact=True).click()
    said = page.get_by_label("console")
    said.get_by_text("step 1/100", exact=False).wait_for()
    for number in range(7, 60):
        log(RunDirectory(folder), number, 1)
    at_end = "one => one.scrollHeight > one.clientHeight && one.scrollTop + one.clientHeight >= one.scrollHeight - 4"
    wait_for(page, lambda: "59/100" in said.inner_text(), True)
    wait_for(page, lambda: said.evaluate(at_end), True)
    page.reload()
    said.get_by_text("step 59/100", exact=False).wait_for()
    wait_for(page, lambda: said.evaluate(at_end), True)


def test_a_rollout_that_ended_before_any_reply_is_shown_with_its_error(page: Any):
    page.evaluate("location.hash = '#rollouts?run=first&stop_reason=time_limit'")
    page.get_by_text("1 to 3 of 3 rollouts").wait_for()
    page.keyboard.press("Enter")
    page.get_by_text("It ended before the model had replied", exact=False).wait_for()
    assert SCRIPT in page.locator(".facts").inner_text()
    page.get_by_role("link", name="Its group side by side").click()
    page.get_by_text("It ended before the model had replied.").wait_for()


def test_the_same_item_is_seen_before_and_after_training(page: Any):
    page.get_by_role("link", name="first").click()
    page.get_by_role("link", name="Changed items").click()
    page.get_by_text("1 of 2 items got better, 0 worse, 1 are scored as before.").wait_for()
    page.locator("tbody a", has_text="0").first.click()
    page.get_by_role("heading", name="scaffold (weights of step 0)").wait_for()
    wait_for(page, page.locator(".beside .reward").all_inner_texts, ["0", "1"])


def test_two_runs_are_compared_and_figures_are_saved(page: Any, runs: dict[str, RunDirectory]):
    page.get_by_label("compare first").check()
    page.get_by_label("compare second").check()
    page.get_by_role("button", name="Compare the chosen runs").click()
    wait_for(page, lambda: curve(page, "reward/mean", 1), [0.1 * step + 1 for step in range(1, 6)])
    page.get_by_role("table", name="Paired differences").wait_for()
    assert page.get_by_role("table", name="Settings that differ").inner_text().split() == [
        "setting",
        "first",
        "second",
        "seed",
        "0",
        "1",
    ]
    figure = page.locator("figure", has=page.locator("[aria-label='reward/mean']"))
    with page.expect_download() as saved:
        figure.get_by_role("button", name="CSV").click()
    rows = list(csv.DictReader(io.StringIO(saved.value.path().read_text())))
    assert [float(row["second"]) for row in rows if row["second"]] == [0.1 * step + 1 for step in range(1, 6)]
    with page.expect_download() as saved:
        figure.get_by_role("button", name="SVG").click()
    assert saved.value.path().read_text().startswith("<svg")


def test_the_runs_of_a_sweep_are_compared_with_one_click(page: Any):
    page.get_by_role("link", name="compare the 2 runs of its sweep").first.click()
    page.get_by_role("heading", name="2 runs").wait_for()
    title = "Parallel coordinates: each line is a run"
    page.get_by_role("img", name=title).scroll_into_view_if_needed()
    wait_for(page, lambda: curve(page, title, 1)[:1], [1])
    wait_for(page, page.locator("table[aria-label^=Scores] tbody a").all_inner_texts, ["seed=0", "seed=1"])
    page.get_by_role("link", name="seed=0").click()
    assert SCRIPT in page.locator(".problem").inner_text()
    assert "ValueError after 5 of 100 steps" in page.locator(".problem").inner_text()


def test_the_list_of_runs_follows_a_run_in_progress(page: Any, runs: dict[str, RunDirectory]):
    lock = runs["second"].path / LOCK
    lock.write_text(f"process {os.getpid()} of {os.uname().nodename}\n")
    shown = page.get_by_role("row", name="second")
    shown.get_by_text("3m10s").wait_for()
    assert "5 / 100" in shown.inner_text()
    log(runs["second"], 6, 1)
    shown.get_by_text("6 / 100").wait_for()
    assert shown.locator("td").nth(6).inner_text() == "1.6"
    lock.unlink()


def test_a_table_stays_sorted_while_its_run_goes_on(page: Any, runs: dict[str, RunDirectory]):
    runs["first"].write_fault(1, {"server": "actor/0", "event": "restarted"})
    page.get_by_role("link", name="first").click()
    table = page.get_by_role("table", name="Faults")
    steps = table.locator("tbody tr td:first-child")
    table.get_by_role("button", name="step").click()
    wait_for(page, steps.all_inner_texts, ["3", "1"])
    runs["first"].write_fault(2, {"server": "actor/0", "event": "restarted"})
    wait_for(page, steps.all_inner_texts, ["3", "2", "1"])


def test_the_scores_of_a_comparison_follow_a_run_in_progress(page: Any, runs: dict[str, RunDirectory]):
    page.evaluate("location.hash = '#compare?run=first&run=second'")
    page.get_by_role("table", name="Paired differences").wait_for()
    table = page.locator("table[aria-label^=Scores]")
    assert table.get_by_role("button", name="single turn").count() == 0
    shared = {"dataset": "docs", "row": "single_turn", "run": 0, "temperature": 1.0, "num_items": 2}
    append_scores(runs["second"].path, [RunScore(**shared, strict=[0.0, 1.0], lenient=[1.0, 1.0])])
    table.get_by_role("button", name="docs, single turn").wait_for()
    assert "50.0" in table.locator("tbody tr").nth(1).inner_text()


@pytest.mark.parametrize(("scheme", "width"), parameters(WINDOWS, WINDOWS[2:]))
def test_every_page_fits_its_window_in_light_and_dark(page: Any, scheme: str, width: int):
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 1000})
    words = {
        "overview": "",
        "rollouts": "",
        "rollout": "&id=1",
        "group": "&group=4",
        "item": "&dataset=docs&item=0",
        "items": "",
        "compare": "&run=second",
    }
    for name, more in {"runs": "", **words}.items():
        page.evaluate("address => { location.hash = address; }", f"#{name}?run=first{more}")
        page.locator("main h1").wait_for()
        page.wait_for_timeout(300)
        assert page.locator(".problem").count() == 0, name
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
    ink, paper = (page.evaluate(f"getComputedStyle(document.body).{name}") for name in ("color", "backgroundColor"))
    assert (brightness(ink) > brightness(paper)) == (scheme == "dark")


def test_the_scores_of_a_report_fit_a_narrow_window(browser: Any, tmp_path: Path):
    run = write_run(tmp_path / "run", seed=0).path
    config = yaml.safe_load((run / "config.yaml").read_text())
    names = [f"documents_{number}" for number in (20, 40, 80)]
    config["data"]["evaluation"] = [{**config["data"]["evaluation"][0], "name": name} for name in names]
    config["evaluation"]["num_runs"] = 2
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    shared = {"row": "trained", "temperature": 1.0, "num_items": 2, "strict": [0.0, 1.0], "lenient": [1.0, 1.0]}
    append_scores(run, [RunScore(dataset=name, run=number, **shared) for name in names for number in range(2)])
    page = browser.new_page(viewport={"width": 800, "height": 1000})
    page.goto(write_report(run).as_uri())
    assert page.get_by_text("documents_80").first.is_visible()
    assert page.locator(".card").evaluate_all("all => all.filter((one) => one.scrollWidth > one.clientWidth + 1).length") == 0
    page.close()


def brightness(color: str) -> float:
    return sum(map(float, re.findall(r"[\d.]+", color)[:3]))


def test_the_keyboard_reaches_the_content(page: Any):
    page.get_by_role("link", name="first").wait_for()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.keyboard.press("Tab")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
