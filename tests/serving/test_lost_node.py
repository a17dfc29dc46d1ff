"""A run on two Ray nodes, trainer on the first and server on the second, with a rollout worker on each: the second is lost."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from ray.cluster_utils import Cluster

from vime.files.jsonl import read_lines

pytestmark = [pytest.mark.long, pytest.mark.in_turn]

NUM_STEPS = 3
WAIT_SECONDS = 500
OVERRIDES = [
    "+method=memagent",
    f"trainer.num_steps={NUM_STEPS}",
    "rollout.num_prompts=4",
    "rollout.num_samples_per_prompt=4",
    "rollout.num_workers=2",
    "evaluation.rows=[]",
    "cluster.num_nodes=2",
    "cluster.colocated=false",
    "cluster.weight_transfer=gloo",
]


def servers_below(raylet: psutil.Process) -> list[psutil.Process]:
    return [p for p in raylet.children(recursive=True) if "vime.inside_vllm.vllm_server" in " ".join(p.cmdline())]


def test_a_lost_server_node_does_not_end_the_run(tmp_path: Path):
    # Ray asks for signs of life more often than by default; a node that is slow to answer has as long as by default.
    head: dict[str, Any] = {"num_cpus": 2, "include_dashboard": False, "_system_config": {"health_check_period_ms": 500}}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    second = cluster.add_node(num_cpus=2)
    raylet = psutil.Process(second.all_processes["raylet"][0].process.pid)
    folder = tmp_path / "run"
    words = [*OVERRIDES, f"cluster.ray_address={cluster.address}", f"output_dir={folder}"]
    with (tmp_path / "output").open("w") as output:
        driver = subprocess.Popen([sys.executable, "-m", "vime.run", *words], stdout=output, stderr=subprocess.STDOUT)
        try:
            deadline = time.monotonic() + WAIT_SECONDS
            while not (folder / "metrics.jsonl").exists():
                assert driver.poll() is None and time.monotonic() < deadline, (tmp_path / "output").read_text()
                time.sleep(0.1)
            assert servers_below(raylet)
            cluster.remove_node(second, allow_graceful=False)
            assert driver.wait(timeout=WAIT_SECONDS) == 0, (tmp_path / "output").read_text()
        finally:
            driver.kill()
            cluster.shutdown()
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["num_steps"], summary["num_failed_rollouts"]) == (NUM_STEPS, 0)
    faults = [(fault["server"], fault["event"]) for fault in read_lines(folder / "faults.jsonl")]
    assert faults[0] == ("actor-0", "lost") and ("actor-0", "recovered") in faults
    rows = read_lines(folder / "metrics.jsonl")
    assert len(rows) == NUM_STEPS
    assert max(row["probe/max_difference_cold"] for row in rows if row["probe/num_servers"]) < 1e-4
    assert all(row["serving/actor/requests"] > 0 and row["serving/actor/failures"] == 0 for row in rows)
