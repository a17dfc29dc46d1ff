"""The whole program with every part real: train, kill the driver, resume, kill a server, and leave nothing behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from vime.compose import compose_run
from vime.data.source import RowSource

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
    *(f"data.evaluation.{number}.num_items=8" for number in range(3)),
]
WAIT_SECONDS = 400


def start(folder: Path, *words: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "vime.run", *OVERRIDES, f"output_dir={folder}", *words]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )


def finish(process: "subprocess.Popen[str]") -> str:
    output, _ = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 0, output
    return output


def wait_for(condition, process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.1)


def num_steps_done(folder: Path) -> int:
    file = folder / "metrics.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0


def descendants(process: "subprocess.Popen[str]") -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def server_of(processes: list[psutil.Process]) -> psutil.Process:
    """The vLLM server itself, not its supervisors, which have its command in theirs."""
    lines = {process: " ".join(process.cmdline()) for process in processes}
    return next(p for p, line in lines.items() if "vime.serving.vllm_server" in line and "vime.serving.launch" not in line)


def run_id_of(processes: list[psutil.Process]) -> str:
    """The id in the name of the run's Ray folder."""
    for process in processes:
        for word in process.cmdline():
            if "/tmp/vime-" in word:
                return word.split("/tmp/vime-")[1][:8]
    raise AssertionError("no Ray process found")


def folders_of(run_id: str) -> list[Path]:
    return [Path(f"/dev/shm/vime-{run_id}"), Path(f"/tmp/vime-{run_id}")]


def assert_nothing_is_left(run_id: str, processes: list[psutil.Process]) -> None:
    deadline = time.monotonic() + 60
    left = processes
    while left and time.monotonic() < deadline:
        left = [p for p in left if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
        time.sleep(0.2)
    assert not left, [" ".join(process.cmdline())[:120] for process in left]
    while any(folder.exists() for folder in folders_of(run_id)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not [folder for folder in folders_of(run_id) if folder.exists()]


@pytest.fixture(scope="module")
def killed_and_resumed(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """A run whose driver is killed in its third step, resumed; a server of the second start is killed on the way."""
    folder = tmp_path_factory.mktemp("run") / "memagent"
    first = start(folder)
    wait_for(lambda: num_steps_done(folder) >= 2, first)
    processes = descendants(first)
    run_id = run_id_of(processes)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    assert_nothing_is_left(run_id, processes)
    steps_before = num_steps_done(folder)

    second = start(folder, "resume=true")
    wait_for(lambda: num_steps_done(folder) > steps_before, second)
    processes = descendants(second)
    server_of(processes).kill()
    output = finish(second)
    return {"folder": folder, "output": output, "processes": processes, "steps_before": steps_before}


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
    assert max(row["train/logprob_difference_max"] for row in rows) < 1e-4
    assert max(row["probe/max_difference_cached"] for row in rows) < 1e-4


def test_the_run_leaves_summary_report_and_a_model_that_transformers_load(killed_and_resumed: dict):
    from transformers import AutoModelForCausalLM

    folder = killed_and_resumed["folder"]
    summary = json.loads((folder / "summary.json").read_text())
    assert set(summary["datasets"]) == {"docs_20", "docs_40", "docs_80"}
    assert {"scaffold", "trained"} <= set(summary["datasets"]["docs_80"])
    assert summary["num_steps"] == NUM_STEPS and summary["first_step_seconds"] > 0
    assert "docs_80" in (folder / "report.html").read_text()
    AutoModelForCausalLM.from_pretrained(folder / "model")


def test_nothing_of_the_run_is_left(killed_and_resumed: dict):
    assert not [p for p in killed_and_resumed["processes"] if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def test_ctrl_c_ends_everything(tmp_path: Path):
    process = start(tmp_path / "run")
    wait_for(lambda: (tmp_path / "run" / "logs" / "actor-0.log").exists(), process)
    time.sleep(2)
    processes = descendants(process)
    run_id = run_id_of(processes)
    os.kill(process.pid, signal.SIGINT)
    output = process.communicate(timeout=120)[0]
    assert process.returncode == 130, output
    assert "Traceback" not in output
    assert_nothing_is_left(run_id, processes)
