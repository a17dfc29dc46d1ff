"""`deterministic=true`: two runs of one seed give the same tokens, rewards and weights, although these are drawn at random.

One starts by itself; the other is the second of a sweep, and takes over Ray, the server and the trainer of a run that has trained
with another learning rate. So what is equal shows as well that nothing of a run is left in the next.

That another seed draws other tokens is shown in `workers/test_seeds.py`.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tools.driven_run import DrivenRun

pytestmark = [pytest.mark.slow, pytest.mark.in_turn]
NUM_STEPS = 3
OVERRIDES = [
    "+method=memagent",
    "deterministic=true",
    "seed=3",
    f"trainer.num_steps={NUM_STEPS}",
    "trainer.save_every=100",
    "rollout.num_prompts=4",
    "rollout.num_samples_per_prompt=4",
    "evaluation.rows=[]",
]
WAIT_SECONDS = 600
TIMES = ("time/", "seconds/", "utilization/", "sync/", "machine/")
"""Groups of metrics that are about when and how quickly."""
TIME_WORDS = ("time", "seconds", "per_second", "prefix_hit_rate")


@pytest.fixture(scope="module", params=[[], pytest.param(["trainer.lora.rank=8"], marks=pytest.mark.long)], ids=["all", "merged"])
def folders(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[dict[str, Path]]:
    """The folders of finished runs, which train all weights, or adapters that are merged for the servers."""
    found, runs = {}, []
    try:
        for name, words in {"first": ["trainer.lr=5e-4"], "sweep": ["trainer.lr=1e-3,5e-4", "--multirun"]}.items():
            found[name] = tmp_path_factory.mktemp("deterministic") / name
            runs.append(DrivenRun(found[name], [*OVERRIDES, *request.param, *words], environment={}))
            assert runs[-1].finish(seconds=WAIT_SECONDS) == 0, runs[-1].log_tail()
        yield {"first": found["first"], "other": found["sweep"] / "0", "again": found["sweep"] / "1"}
    finally:
        for run in runs:
            run.kill()


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def metrics(folder: Path) -> list[dict[str, float]]:
    """All metrics but times."""
    return [
        {
            name: value
            for name, value in row.items()
            if not name.startswith(TIMES) and not any(name.endswith(word) for word in TIME_WORDS) and "seconds" not in name
        }
        for row in lines(folder / "metrics.jsonl")
    ]


def test_two_runs_of_one_seed_have_the_same_metrics_but_for_times(folders: dict[str, Path]):
    first, again = metrics(folders["first"]), metrics(folders["again"])
    assert len(first) >= NUM_STEPS and {"reward/mean", "train/loss", "train/grad_norm"} <= first[0].keys()
    assert first == again


def test_the_second_run_of_the_sweep_used_the_server_of_the_first(folders: dict[str, Path]):
    assert (folders["again"] / "logs" / "actor-0.log").samefile(folders["other"] / "logs" / "actor-0.log")
    assert metrics(folders["other"]) != metrics(folders["again"])


def test_they_have_the_same_tokens_and_weights(folders: dict[str, Path]):
    for step in range(1, NUM_STEPS + 1):
        first, again = (lines(folders[name] / "rollouts" / f"step_{step:06d}.jsonl") for name in ("first", "again"))
        assert [(row["group_index"], row["samples"]) for row in first] == [(row["group_index"], row["samples"]) for row in again]
    first, again = ((folders[name] / "model" / "model.safetensors").read_bytes() for name in ("first", "again"))
    assert first == again


def test_members_of_a_group_are_sampled_with_seeds_of_their_own(folders: dict[str, Path]):
    rows = lines(folders["first"] / "rollouts" / "step_000001.jsonl")
    conversations = {(row["group_index"], *(sample["response"] for sample in row["samples"])) for row in rows}
    assert len(rows) == 16 and len(conversations) > 8
