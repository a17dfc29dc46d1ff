"""Agent Lightning 0.3.0 itself: its trainer, its store and its runners, with a vime whose model is scripted."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[3] / "tools"))

from client_environments import AGENT_LIGHTNING

ROOT = Path(__file__).resolve().parents[3]
SECONDS = 300

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (AGENT_LIGHTNING.folder / "finished").exists(),
        reason="no environment with Agent Lightning: run `python tools/bench_agent_lightning.py --environment`",
    ),
]


def train(folder: Path, *words: str, child: str) -> subprocess.CompletedProcess[str]:
    """Runs the database agent's trainer with this shell script as vime's interpreter."""
    program = folder / "vime-python"
    program.write_text(f"#!/bin/sh\n{child}\n")
    program.chmod(0o755)
    command = [str(AGENT_LIGHTNING.python), str(ROOT / "tools/agent_lightning_side.py"), "--python", str(program)]
    environment = {**os.environ, "HOME": str(Path.home()), **dict(AGENT_LIGHTNING.variables)}
    return subprocess.run(
        [*command, "--json", str(folder / "store.json"), *words],
        cwd=folder,
        env=environment,
        timeout=SECONDS,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_killed_runner_and_a_failed_attempt_cost_their_attempt_and_are_attributed(tmp_path: Path):
    scripted = ROOT / "tests/agentic/integrations/scripted_vime.py"
    child = f'exec {sys.executable} {scripted} {tmp_path / "vime.json"} "$@"'
    ended = train(tmp_path, "--faults", "--runners", "3", "--lost-seconds", "15", child=child)
    assert ended.returncode == 0, ended.stderr[-3000:]
    rollouts: list[dict[str, Any]] = json.loads((tmp_path / "vime.json").read_text())
    assert [(one["stop_reason"], one["reward"]) for one in rollouts] == [
        ("answered", float(number % 2 == 0)) for number in range(12)
    ], "nothing is lost but attempts"

    store = json.loads((tmp_path / "store.json").read_text())
    by_rollout: dict[int, list[dict[str, Any]]] = {}
    for held in store["rollouts"]:
        by_rollout.setdefault(held["vime_rollout"], []).append(held)
    lost: list[str] = []
    for one in rollouts:
        *failed, last = by_rollout[one["vime_rollout"]]
        assert [held["vime_attempt"] for held in (*failed, last)] == list(range(one["num_retries"] + 1))
        assert last["status"] == "succeeded" and last["rollout_id"] == one["rollout_id"] and last["reward"] == one["reward"]
        assert last["triplets"] == last["calls"] == 2, "the stock adapter reads our spans"
        assert [held["status"] for held in failed] == ["failed"] * one["num_retries"]
        for [[_, status, runner]] in (held["attempts"] for held in failed):
            lost.append(status)
            assert status == "failed" or runner != one["runner"], "a killed runner runs nothing any more"
    assert lost.count("failed") == 1 and "unresponsive" in lost
    used = {(held["weight_version"], held["resources_id"]) for held in store["rollouts"]}
    assert len(used) == 2 == len({resources_id for _, resources_id in used}), "each version of the weights has its resources"


def test_a_vime_that_fails_ends_the_trainer_with_an_error(tmp_path: Path):
    ended = train(tmp_path, child="echo this is why >&2; exit 3")
    assert ended.returncode != 0 and "this is why" in ended.stderr and "vime ended with status 3" in ended.stderr
