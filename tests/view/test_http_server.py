"""The server answers with what the files hold, only to who has the token, only for the given runs, and only reads."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.report.test_html import make_run, scores
from tests.view.test_rollout_index import append, item, rollout
from vime.files.jsonl import append_line, write_lines
from vime.report.ending import INTERRUPTED, RunEnding, write_ending
from vime.report.html import write_report
from vime.report.metrics_file import read_metrics
from vime.report.run_directory import LOCK, RunDirectory
from vime.report.summary import append_scores, summarize_runs
from vime.report.tables import score_text
from vime.view.http_server import PAGES, application
from vime.view.routes import ROUTES
from vime.view.runs import Runs

TOKEN, PORT = "the-token", 8765
METRICS = [
    {"step": n, "time": 1.0 * n, "reward/mean": n / 7, "train/loss": 1e-17 / n, "time/step_seconds": 2.5} for n in range(1, 31)
]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A run with metrics, scores, rollouts and items."""
    directory = make_run(tmp_path / "outputs" / "run")
    (directory.path / "rollouts").mkdir()
    (directory.path / "logs").mkdir()
    (directory.path / "logs" / "driver.log").write_text("a line\n")
    write_lines(directory.path / "metrics.jsonl", METRICS)
    write_lines(directory.path / "rollouts" / "step_000001.jsonl", [rollout(1, number) for number in range(8)])
    append(directory.evaluation / "docs_24-trained-t1-run0.jsonl", [item(number) for number in range(3)])
    append_scores(directory.path, [scores("scaffold", number, [1.0, 0.0, 0.0]) for number in range(2)])
    append_line(directory.path / "faults.jsonl", {"step": 3, "event": "restarted"})
    return directory


def client(*folders: Path, token: str = TOKEN) -> TestClient:
    """A browser on this machine that has opened the address which the viewer printed."""
    app = application(Runs(list(folders)), token=TOKEN, port=PORT)
    made = TestClient(app, base_url=f"http://127.0.0.1:{PORT}", follow_redirects=False)
    if token:
        made.get("/", params={"token": token})
    return made


def test_what_the_server_says_equals_the_files_the_report_and_the_table(run: RunDirectory):
    asked = client(run.path.parent)
    assert asked.get("/api/metrics?run=run").json()["rows"] == read_metrics(run.path / "metrics.jsonl") == METRICS
    about = asked.get("/api/run?run=run").json()
    row = summarize_runs([scores("scaffold", number, [1.0, 0.0, 0.0]) for number in range(2)])
    assert about["datasets"]["docs_24"]["scaffold"] == row
    assert score_text(row).split(" (")[0] in write_report(run.path).read_text()
    assert about["faults"] == [{"step": 3, "event": "restarted"}]
    assert about["eta_seconds"] == 2.5 * (about["config"]["trainer"]["num_steps"] - 30)
    found = asked.get("/api/rollouts?run=run&kind=training&sort=reward").json()
    lines = [json.loads(text) for text in (run.rollouts / "step_000001.jsonl").read_text().splitlines()]
    assert [entry["reward"] for entry in found["rows"]] == sorted((line["reward"] for line in lines), reverse=True)
    for entry in found["rows"]:
        line = asked.get(f"/api/rollout?run=run&id={entry['id']}").json()["line"]
        assert line == lines[entry["rollout_id"]]


def test_runs_of_one_name_in_two_folders_are_told_apart_and_the_last_one_stands_first(tmp_path: Path):
    folders = [tmp_path / "mine" / "outputs", tmp_path / "yours" / "outputs"]
    for number, path in enumerate([folders[0] / "demo" / "0", folders[1] / "demo" / "0", folders[0] / "demo" / "1"]):
        made = make_run(path).path / "config.yaml"
        os.utime(made, (number, number))
    named = {run.name: run.path for run in Runs(folders).all()}
    assert list(named) == ["demo/1", "yours/outputs/demo/0", "mine/outputs/demo/0"]
    assert named["yours/outputs/demo/0"] == folders[1] / "demo" / "0"


def test_a_run_that_failed_or_was_interrupted_is_called_so(run: RunDirectory):
    asked, states = client(run.path), []
    for error in ("ValueError", INTERRUPTED):
        write_ending(run.path, RunEnding(error=error, text="", step=5, num_steps=100, checkpoint=None, go_on="python"))
        states.append(asked.get("/api/runs").json()["runs"][0]["state"])
    assert states == ["failed", "interrupted"]


def test_the_list_says_how_far_each_run_has_come_as_its_overview_does(run: RunDirectory):
    asked = client(run.path.parent)
    (run.path / LOCK).write_text(f"process {os.getpid()} of {os.uname().nodename}\n")
    (listed,) = asked.get("/api/runs").json()["runs"]
    about = asked.get("/api/run", params={"run": "run"}).json()
    assert listed["state"] == "running" and listed["eta_seconds"] == about["eta_seconds"] == 2.5 * (listed["num_steps"] - 30)
    assert (listed["step"], listed["num_steps"]) == (30, about["config"]["trainer"]["num_steps"])
    assert listed["reward"] == METRICS[-1]["reward/mean"]
    before = asked.get("/api/changes").json()
    append_line(run.path / "metrics.jsonl", {**METRICS[-1], "step": 31, "reward/mean": 0.5})
    assert asked.get("/api/changes").json() != before
    assert asked.get("/api/runs").json()["runs"][0]["reward"] == 0.5
    (run.path / LOCK).unlink()
    assert asked.get("/api/runs").json()["runs"][0]["eta_seconds"] is None


def test_metrics_are_sent_once_and_all_again_when_they_were_cut_back(run: RunDirectory):
    asked, path = client(run.path), run.path / "metrics.jsonl"
    name = f"{run.path.parent.name}/{run.path.name}"

    def more(**known: Any) -> dict[str, Any]:
        return asked.get("/api/metrics", params={"run": name, **known}).json()

    first = more()
    append_line(path, {"step": 31, "time": 1.0})
    with path.open("a") as file:
        file.write('{"step": 32, "ti')
    second = more(offset=first["offset"], inode=first["inode"])
    assert second["rows"] == [{"step": 31, "time": 1.0}] and second["from"] == first["offset"]
    write_lines(path, METRICS[:5])
    third = more(offset=second["offset"], inode=second["inode"])
    assert third["rows"] == METRICS[:5] and third["from"] == 0


@pytest.mark.parametrize("path", ["/", "/api/runs", "/pages/main.js", "/api/run?run=run"])
def test_nothing_is_answered_without_the_token(run: RunDirectory, path: str):
    assert client(run.path.parent).get(path).status_code == 200
    for asked in (client(run.path.parent, token=""), client(run.path.parent, token="the-toker")):
        answer = asked.get(path)
        assert answer.status_code == 403 and set(answer.json()) == {"problem"}
        assert "set-cookie" not in answer.headers


def test_the_cookie_is_out_of_reach_of_scripts_and_of_other_sites(run: RunDirectory):
    app = application(Runs([run.path]), token=TOKEN, port=PORT)
    made = TestClient(app, base_url=f"http://127.0.0.1:{PORT}").get("/", params={"token": TOKEN}).headers["set-cookie"]
    assert {"HttpOnly", "SameSite=Strict"} < {part.strip() for part in made.split(";")}


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
def test_no_method_but_get_is_answered(run: RunDirectory, method: str):
    asked = client(run.path.parent)
    assert {asked.request(method, f"/api/{route}?run=run").status_code for route in ROUTES} == {405}


def test_another_host_name_is_refused(run: RunDirectory):
    answer = client(run.path.parent).get("/api/runs", headers={"host": "evil.example:8765"})
    assert answer.status_code == 421


@pytest.mark.parametrize("name", ["..", "../..", "/", "/etc", ".", "run/..", "run/../run", "earlier", "", "%2e%2e"])
def test_only_runs_that_were_given_are_served(run: RunDirectory, name: str):
    asked = client(run.path.parent)
    for route in set(ROUTES) - {"runs", "compare", "changes"}:
        assert asked.get(f"/api/{route}", params={"run": name}).status_code == 404, route


@pytest.mark.parametrize(
    "path", ["/pages/../http_server.py", "/pages/%2e%2e/http_server.py", "/pages//etc/passwd", "/config.yaml", "/api/../x"]
)
def test_pages_are_those_of_the_package(run: RunDirectory, path: str):
    assert client(run.path.parent).get(path).status_code == 404


@pytest.mark.parametrize("name", ["../config.yaml", "/etc/passwd", "driver.log/../../config.yaml", "linked.log", "none.log"])
def test_only_logs_of_the_run_are_shown(run: RunDirectory, tmp_path: Path, name: str):
    (tmp_path / "secret").write_text("secret")
    (run.path / "logs" / "linked.log").symlink_to(tmp_path / "secret")
    asked = client(run.path.parent)
    assert asked.get("/api/log", params={"run": "run", "name": "driver.log"}).json() == {"text": "a line\n"}
    assert asked.get("/api/log", params={"run": "run", "name": name}).status_code == 404


def test_links_that_lead_out_of_the_given_folders_are_not_followed(run: RunDirectory, tmp_path: Path):
    other = make_run(tmp_path / "elsewhere" / "other")
    (run.path.parent / "linked").symlink_to(other.path)
    (run.path.parent / "latest").symlink_to(run.path)
    (run.path / "faults.jsonl").unlink()
    append_line(tmp_path / "faults.jsonl", {"step": 1, "event": "secret"})
    (run.path / "faults.jsonl").symlink_to(tmp_path / "faults.jsonl")
    asked = client(run.path.parent)
    assert [one["name"] for one in asked.get("/api/runs").json()["runs"]] == ["run"]
    assert asked.get("/api/run?run=run").json()["faults"] == []


def test_answers_cannot_be_run_as_pages(run: RunDirectory):
    write_lines(run.rollouts / "step_000002.jsonl", [rollout(2, 99, error="<script>alert(1)</script>")])
    asked = client(run.path.parent)
    for path in ("/", "/api/rollouts?run=run", "/api/rollouts?run=<b>", "/api/group?run=run&group=24"):
        headers = asked.get(path).headers
        assert "script-src 'self'" in headers["content-security-policy"] and "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert path == "/" or headers["content-type"] == "application/json"


def test_no_page_makes_markup_of_data():
    for path in PAGES.glob("*.js"):
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "createContextualFragment"):
            assert word not in path.read_text(), (path.name, word)


def test_nothing_in_a_run_folder_changes_while_it_is_viewed(run: RunDirectory):
    before = {path: path.stat().st_mtime_ns for path in run.path.parent.rglob("*")}
    asked = client(run.path.parent)
    for route in ROUTES:
        asked.get(f"/api/{route}", params={"run": "run", "id": 1, "dataset": "docs", "name": "driver.log"})
    assert {path: path.stat().st_mtime_ns for path in run.path.parent.rglob("*")} == before


def test_a_file_that_cannot_be_read_is_named_and_the_others_are_shown(run: RunDirectory):
    (run.rollouts / "step_000002.jsonl").write_text("no json\n")
    found = client(run.path.parent).get("/api/rollouts?run=run").json()
    assert list(found["problems"]) == ["rollouts/step_000002.jsonl"] and found["total"] == 11


def test_changes_are_seen_and_nothing_else(run: RunDirectory):
    asked = client(run.path.parent)
    before = asked.get("/api/changes?run=run").json()
    assert asked.get("/api/changes?run=run").json() == before
    append(run.evaluation / "docs_24-trained-t1-run0.jsonl", [item(7)])
    assert asked.get("/api/changes?run=run").json() != before


@pytest.mark.parametrize("query", ["rollouts?run=run&min_step=many", "rollouts?run=run&sort=text", "rollout?run=run&id=x"])
def test_a_wrong_number_or_order_is_a_sentence(run: RunDirectory, query: str):
    answer = client(run.path.parent).get(f"/api/{query}")
    assert answer.status_code == 400 and len(answer.json()["problem"]) > 10
