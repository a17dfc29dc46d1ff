"""The whole program with every part real: train, kill the driver, resume, kill a server, and leave nothing behind.

It is run as users have it: from a wheel of this checkout in an environment of its own, started in an empty folder.
"""

import json
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tools.driven_run import ROOT, DrivenRun, num_steps_done
from vime.data.source import RowSource
from vime.preflight.compose import compose_run

pytestmark = [pytest.mark.slow, pytest.mark.in_turn]
NUM_STEPS, NUM_PROMPTS = 6, 4
OVERRIDES = [
    "+method=memagent",
    f"trainer.num_steps={NUM_STEPS}",
    "trainer.save_every=1",
    f"rollout.num_prompts={NUM_PROMPTS}",
    "rollout.num_samples_per_prompt=4",
    "evaluation.rows=[scaffold,trained]",
    "evaluation.num_runs=1",
    "evaluation.extra_temperatures=[]",
    *(f"data.evaluation.{number}.num_items=4" for number in range(3)),
]
WAIT_SECONDS = 400
PACKAGES = ("vime", "agentic", "conf")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of this checkout, built from a copy, so that nothing of earlier builds gets into it."""
    source, folder = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    words = ["--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(folder), str(source)]
    built = subprocess.run([sys.executable, "-m", "pip", "wheel", *words], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The Python of an environment with the wheel and everything that it depends on, but not this checkout."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    python = str(folder / "bin" / "python")
    words = ["install", "--no-deps", "--no-index", str(wheel)]
    installed = subprocess.run([sys.executable, "-m", "pip", "--python", python, *words], capture_output=True, text=True)
    assert installed.returncode == 0, installed.stderr
    (packages,) = folder.glob("lib/python*/site-packages")
    # The .pth files of a folder that is named in a .pth file are not read, and the checkout is in one of those.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


@pytest.fixture(scope="module")
def start(python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., DrivenRun]]:
    """Starts a run in a folder; whatever is left of it when the tests are over is killed."""
    runs: list[DrivenRun] = []
    empty = tmp_path_factory.mktemp("empty")

    def start_run(folder: Path, *words: str) -> DrivenRun:
        words = (*OVERRIDES, *words)
        runs.append(DrivenRun(folder, [*words], environment={"PYTHONPATH": ""}, python=python, start_folder=empty))
        return runs[-1]

    yield start_run
    for run in runs:
        run.kill()


@pytest.fixture(scope="module")
def killed_and_resumed(start: Callable[..., DrivenRun], tmp_path_factory: pytest.TempPathFactory) -> dict:
    """A run whose driver is killed in its third step, resumed; a server of the second start is killed on the way."""
    folder = tmp_path_factory.mktemp("run") / "memagent"
    first = start(folder)
    first.wait_for(lambda: num_steps_done(folder) >= 2, seconds=WAIT_SECONDS)
    first.driver.kill()
    first.finish(seconds=WAIT_SECONDS)
    left_by_the_first = first.leftovers()
    steps_before = num_steps_done(folder)

    second = start(folder, "resume=true")
    second.wait_for(lambda: num_steps_done(folder) > steps_before, seconds=WAIT_SECONDS)
    second.find("vime.inside_vllm.vllm_server").kill()
    assert second.finish(seconds=WAIT_SECONDS) == 0, second.log_tail()
    return {"folder": folder, "leftovers": {"killed": left_by_the_first, "completed": second.leftovers()}}


def test_a_wheel_has_every_file_of_its_packages(wheel: Path):
    files = [file for name in PACKAGES for file in (ROOT / name).rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    missing = {file.relative_to(ROOT).as_posix() for file in files} - set(zipfile.ZipFile(wheel).namelist())
    assert not missing


def test_the_installed_package_is_the_wheels(python: str, tmp_path: Path):
    code = "import agentic, conf, vime; print(agentic.__file__, conf.__file__, vime.__file__)"
    shown = subprocess.run([python, "-c", code], cwd=tmp_path, env={"PYTHONPATH": ""}, capture_output=True, text=True)
    folder = str(Path(python).parents[1])
    assert shown.returncode == 0 and all(path.startswith(folder) for path in shown.stdout.split()), shown.stdout + shown.stderr


def test_no_prompt_is_skipped_or_doubled_over_a_kill(killed_and_resumed: dict):
    folder = killed_and_resumed["folder"]
    source = RowSource(compose_run(OVERRIDES).config)
    expected = [source.next().row for _ in range(NUM_STEPS * NUM_PROMPTS)]
    seen = []
    for step in range(1, NUM_STEPS + 1):
        rows = [json.loads(line) for line in (folder / "rollouts" / f"step_{step:06d}.jsonl").read_text().splitlines()]
        seen += [row for _, row in sorted({(r["group_index"], r["row"]) for r in rows})]
        assert all(len([r for r in rows if r["group_index"] == group]) == 4 for group in {r["group_index"] for r in rows})
    assert seen == expected


def test_metrics_have_every_step_once(killed_and_resumed: dict):
    rows = [json.loads(line) for line in (killed_and_resumed["folder"] / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, NUM_STEPS + 1))


def test_a_killed_server_is_a_fault_in_log_and_metrics_and_costs_nothing(killed_and_resumed: dict):
    folder = killed_and_resumed["folder"]
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert sum(row.get("server/num_faults", 0) for row in rows) >= 1
    assert "died" in (folder / "faults.jsonl").read_text()
    assert json.loads((folder / "summary.json").read_text())["num_failed_rollouts"] == 0


def test_trainer_and_server_agree_on_the_logprobs_of_all_sampled_tokens(killed_and_resumed: dict):
    rows = [json.loads(line) for line in (killed_and_resumed["folder"] / "metrics.jsonl").read_text().splitlines()]
    largest = 2e-4  # of thousands of tokens in float32, others in every run: 1.02e-4 was seen
    assert max(row["train/logprob_difference_max"] for row in rows) < largest
    assert max(row["probe/max_difference_cached"] for row in rows if row["probe/num_servers"]) < largest


def test_the_run_leaves_summary_report_and_a_model_that_transformers_load(killed_and_resumed: dict):
    from transformers import AutoModelForCausalLM

    folder = killed_and_resumed["folder"]
    summary = json.loads((folder / "summary.json").read_text())
    assert set(summary["datasets"]) == {"docs_20", "docs_40", "docs_80"}
    assert {"scaffold", "trained"} <= set(summary["datasets"]["docs_80"])
    assert summary["num_steps"] == NUM_STEPS and summary["first_step_seconds"] > 0
    assert "docs_80" in (folder / "report.html").read_text()
    AutoModelForCausalLM.from_pretrained(folder / "model")


@pytest.mark.parametrize("ended", ["killed", "completed"])
def test_nothing_of_the_run_is_left(killed_and_resumed: dict, ended: str):
    assert killed_and_resumed["leftovers"][ended] == []


def test_a_run_that_is_terminated_twice_ends_in_order_and_leaves_nothing(start: Callable[..., DrivenRun], tmp_path: Path):
    """Ctrl-C goes the same way without the second signal: see `test_run.py`."""
    folder = tmp_path / "run"
    run = start(folder)
    server_log = folder / "logs" / "actor-0.log"
    run.wait_for(lambda: server_log.exists() and server_log.stat().st_size, seconds=WAIT_SECONDS)
    driver = run.driver
    for _ in range(2):
        driver.terminate()
    assert run.finish(seconds=WAIT_SECONDS) == 143, run.log_tail()
    assert "Traceback" not in run.log_tail() and "interrupted" in run.log_tail()
    assert run.leftovers() == []
