"""The oracle's comparison finds every difference between two runs, and none that a clock makes."""

import json
import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from vime.types import COLUMNS, Column

sys.path.append(str(Path(__file__).parents[2] / "tools"))
import oracle
import oracle_side
from oracle_script import ACTS, Calculator

from agentic.calculator import CalculatorConfig
from vime.config import RolloutConfig, RunConfig
from vime.rehearsal.script import Asked

SAMPLE = {
    "response": "four",
    "num_prompt_tokens": 2,
    "response_length": 2,
    "reward": 1.0,
    "metadata": {"calls": [{"end": "answered", "milliseconds": 4.5}]},
    "advantage": 0.5,
    "tokens": Column([1, 2, 3, 4], COLUMNS["tokens"]).to_text(),
    "loss_mask": Column([1, 0], COLUMNS["loss_mask"]).to_text(),
    "rollout_log_probs": Column([-0.5, 0.0], COLUMNS["rollout_log_probs"]).to_text(),
    "weight_versions": 0,
}
ROLLOUT = {"step": 1, "group_index": 0, "rollout_id": 3, "reward": 1.0, "stop_reason": "answered", "seconds": {"queue": 0.1}}
METRICS = {"step": 1, "train/loss": 0.25, "train/seconds": 3.0, "time/step_seconds": 4.0, "reward/mean": 1.0}


def write(folder: Path, *, rollout: dict[str, Any], sample: dict[str, Any], metrics: dict[str, Any], weight: float) -> Path:
    """A run folder of one rollout."""
    (folder / "rollouts").mkdir(parents=True)
    (folder / "model").mkdir()
    rows = [{**rollout, "samples": [sample]}, {**rollout, "rollout_id": 4, "samples": [sample]}]
    (folder / "rollouts" / "step_000001.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "metrics.jsonl").write_text(json.dumps(metrics) + "\n")
    save_file({"norm": torch.ones(3), "head": torch.tensor([[1.0, weight]])}, folder / "model" / "model.safetensors")
    (folder / "summary.json").write_text("{}")
    return folder


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch):
    """A side's program runs here."""
    monkeypatch.setattr(oracle.Side, "tool", lambda _, command, *words: getattr(oracle_side, command)(*words))


def compared(folder: Path, comparison: str, change: Callable[[dict[str, Any]], object]) -> oracle.Differences:
    """A run beside the same run with a change."""
    run = {"rollout": ROLLOUT, "sample": SAMPLE, "metrics": METRICS, "weight": 2.0}
    changed = deepcopy(run)
    change(changed)
    for name, values in (("ours", changed), ("oracle", run)):
        write(folder / name / "memagent" / comparison, **values)
    ours, other = (oracle.Side(checkout=Path(), folder=folder / name) for name in ("ours", "oracle"))
    return oracle.compare("memagent", comparison, ours, other)


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "a reward": (lambda run: run["rollout"].update(reward=0.0), "reward"),
    "an end": (lambda run: run["rollout"].update(stop_reason="time_limit"), "stop_reason"),
    "order": (lambda run: run["rollout"].update(group_index=1), "group_index"),
    "metadata": (lambda run: run["sample"].update(metadata={}), "metadata"),
    "a mask": (lambda run: run["sample"].update(loss_mask=Column([1, 1], COLUMNS["loss_mask"]).to_text()), "loss_mask"),
    "an expert's answer": (lambda run: run["sample"]["metadata"]["calls"][0].update(end="failed"), "metadata"),
    "a version": (lambda run: run["sample"].update(weight_versions=1), "weight_versions"),
    "a column that is missing": (lambda run: run["sample"].pop("rollout_log_probs"), "rollout_log_probs"),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("comparison", ["rollouts", "steps"])
def test_every_part_of_a_rollout_is_compared(name: str, comparison: str, tmp_path: Path):
    change, place = CHANGES[name]
    found = compared(tmp_path, comparison, change)
    assert list(found.found) == [place] and not found.is_within and place in found.cell()


def test_metrics_and_weights_are_compared_after_steps(tmp_path: Path):
    found = compared(tmp_path, "steps", lambda run: (run["metrics"].update({"train/loss": 0.5}), run.update(weight=2.5)))
    assert found.found == {"train/loss": 0.5, "weights: head": 0.25}
    assert "**5.0e-01** at train/loss (2 of" in found.cell()


def test_clocks_are_not_compared_and_the_last_bits_are_within_the_limit(tmp_path: Path):
    def change(run: dict[str, Any]):
        run["rollout"]["seconds"] = {"queue": 9.0}
        run["sample"]["metadata"]["calls"][0]["milliseconds"] = 9.0
        run["metrics"] |= {"train/seconds": 9.0, "time/step_seconds": 9.0, "train/loss": 0.25 * (1 + 1e-7)}
        run["sample"]["rollout_log_probs"] = Column([-0.5000001, 0.0], COLUMNS["rollout_log_probs"]).to_text()

    found = compared(tmp_path, "steps", change)
    assert set(found.found) == {"train/loss", "rollout_log_probs"} and found.is_within
    assert not oracle.Differences().is_within, "nothing was compared"


def test_runs_of_different_lengths_differ(tmp_path: Path):
    folder = write(tmp_path / "a", rollout=ROLLOUT, sample=SAMPLE, metrics=METRICS, weight=2.0)
    recorded = [oracle.Side(checkout=Path(), folder=tmp_path).recorded(folder) for _ in range(2)]
    assert recorded[0][0]["samples"][0]["columns"]["tokens"] == [1, 2, 3, 4]
    recorded[0].pop()
    found = oracle.Differences()
    oracle.compare_rollouts(found, *recorded)
    assert list(found.found) == ["number of rollouts"] and not found.is_within


def test_what_was_recorded_is_trained_step_by_step_where_it_has_an_advantage(tmp_path: Path):
    steps = [(1, 0.5), (1, 0.0), (2, 0.0), (3, -0.5)]
    rollouts = [{"step": step, "samples": [{"advantage": advantage}]} for step, advantage in steps]
    (tmp_path / "recorded.json").write_text(json.dumps(rollouts))
    found = oracle_side._batches(tmp_path / "recorded.json")  # pyright: ignore[reportPrivateUsage]
    assert found == [[{"advantage": 0.5}], [{"advantage": -0.5}]]


def test_scripted_parts_follow_from_places_whoever_asks_first():
    config = RunConfig(method=CalculatorConfig(), rollout=RolloutConfig(num_prompts=2, num_samples_per_prompt=4))

    def parts(order: range) -> list[str]:
        script = Calculator(config)
        names = {place: f"asdiv-train-{place // 4}-{place % 4}-{place:08x}-0" for place in order}
        asked = {n: Asked(model="actor", prompt="", session=name, turn=0, max_tokens=8) for n, name in names.items()}
        return [part for _, part in sorted((place, script.act(each, ACTS)) for place, each in asked.items())]

    assert parts(range(8)) == parts(range(7, -1, -1)) == [*ACTS, *ACTS][:8]
