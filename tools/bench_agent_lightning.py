"""Trains the laptop task of `agentic/database` with Agent Lightning's trainer and natively, and puts the two side by side.

    python tools/bench_agent_lightning.py --environment          # makes the environments of 0.3.0 and, with Python 3.12, 1.0.2
    python tools/bench_agent_lightning.py [--steps 10] [--seed 0] [--faults] [--out FOLDER] [--json PATH] [--markdown PATH]
    python tools/bench_agent_lightning.py --service [--steps 10] [--faults] [--out FOLDER] [--markdown PATH]

Both use the same data, seed and settings; the agents are `lightning_agent.py`, in two runners, and `openai_sdk.py`. The page's
numbers of Agent Lightning's side come from its own store (`agent_lightning_side.py`). With `--service` the loop is in Agent
Lightning's trainer, and the training service (`vime/service`) trains and answers.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench_rows import Result, circumstances
from client_environments import AGENT_LIGHTNING, AGENT_LIGHTNING_SERVER, ROOT
from tinker_versions import served

from vime.report.metrics_file import curves, read_metrics

SERVICE_PORT, CHECKPOINT = 8934, "agentic/database/tiny/actor"
SIDE = ROOT / "tools" / "agent_lightning_side.py"
TASK = ["+experiment=database_tiny", "rollout.num_prompts=6", "evaluation.rows=[]"]
FAULT_WORDS = ["+experiment=database_tiny", "rollout.num_prompts=4", "evaluation.rows=[]", "trainer.num_steps=3"]
FAULT_OPTIONS = ("--faults", "--runners", "3", "--lost-seconds", "20")
REWARD, METRICS = "reward/mean", "metrics.jsonl"
NOTES = """\
- native: the same recipe with the agent of OpenAI's SDK, without Agent Lightning.
- resources: which resources of Agent Lightning's store, in the order of their making, the agents of this step were started with.
- weights: the versions of the weights that sampled the tokens of these rollouts' calls, from their spans.
- calls, triplets: calls of the model in the store, and what the stock adapter LlmProxyTraceToTriplet makes of them.
- attempts lost: rollouts of Agent Lightning that failed; vime tried each of them again.
"""
FAULTS = """\
## Faults
In a run of three steps with three runners, one runner is killed behind the last call of a rollout, and one attempt raises an
error. Of {num_rollouts} rollouts in the store these failed; vime tried each again, in a rollout and a session of its own:
"""


@dataclass(kw_only=True, slots=True)
class Step:
    """The record of one version of the weights in Agent Lightning's store.

    Example: `Step(weight_version=0, resources={2}, weights={0}, num_rollouts=64, calls=190, triplets=190, lost=0, reward=0.4)`.
    """

    weight_version: int
    resources: set[int]
    weights: set[int]
    num_rollouts: int
    calls: int
    triplets: int
    lost: int
    reward: float


def steps_of(store: dict[str, Any]) -> list[Step]:
    """The training rollouts of each version of the weights."""
    by_version: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
    for rollout in store["rollouts"]:
        if rollout["mode"] == "train":
            by_version[rollout["weight_version"]].append(rollout)
    found = []
    for version, rollouts in sorted(by_version.items()):
        ended = [rollout for rollout in rollouts if rollout["status"] == "succeeded"]
        step = Step(
            weight_version=version,
            resources={store["resources"][rollout["resources_id"]] for rollout in rollouts},
            weights={version for rollout in rollouts for version in rollout["weight_versions"]},
            num_rollouts=len(rollouts),
            calls=sum(rollout["calls"] for rollout in rollouts),
            triplets=sum(rollout["triplets"] for rollout in rollouts),
            lost=len(rollouts) - len(ended),
            reward=sum(rollout["reward"] for rollout in ended) / max(len(ended), 1),
        )
        found.append(step)
    return found


def train(words: list[str], folder: Path) -> list[float]:
    """Trains with vime alone; returns the reward of each step."""
    if not (folder / METRICS).exists():
        subprocess.run([sys.executable, "-m", "vime.run", *words, f"output_dir={folder}"], check=True)
    return rewards_of(folder)


def rewards_of(run: Path) -> list[float]:
    """The mean reward of each step of a run."""
    return curves(read_metrics(run / METRICS))[REWARD][1]


def train_with_agent_lightning(words: list[str], folder: Path, *options: str) -> tuple[list[float], dict[str, Any]]:
    """Trains with Agent Lightning's trainer; returns the reward of each step, and the content of its store."""
    file = folder.with_suffix(".json")
    command = [str(AGENT_LIGHTNING.python), str(SIDE), "--python", sys.executable, "--json", str(file), *options, *words]
    if not file.exists():
        subprocess.run([*command, f"output_dir={folder}"], check=True, env={**os.environ, **dict(AGENT_LIGHTNING.variables)})
    return rewards_of(folder), json.loads(file.read_text())


def train_on_service(url: str, file: Path, steps: int, *options: str) -> dict[str, Any]:
    """Trains with Agent Lightning's trainer on the service; returns the content of its store."""
    command = [str(AGENT_LIGHTNING.python), str(SIDE), "--service", url, "--steps", str(steps), "--json", str(file), *options]
    if not file.exists():
        subprocess.run(command, check=True, env={**os.environ, **dict(AGENT_LIGHTNING.variables)})
    return json.loads(file.read_text())


def service_page(page: Result, store: dict[str, Any], faulty: dict[str, Any] | None) -> str:
    """Markdown: one line per step, and the validation rewards before and after."""
    names = ["step", "reward", "resources", "weights", "rollouts", "calls", "triplets", "attempts lost"]
    lines = [f"| {' | '.join(names)} |", f"|{'--:|' * len(names)}"]
    for step in steps_of(store):
        cells = [step.weight_version + 1, f"{step.reward:.3f}", *map(_listed, (step.resources, step.weights))]
        lines.append(f"| {' | '.join(map(str, [*cells, step.num_rollouts, step.calls, step.triplets, step.lost]))} |")
    before, after = store["validation"]
    facts = "\n".join(f"- {fact}" for fact in circumstances(page))
    faults = f"\n{FAULTS.format(num_rollouts=len(faulty['rollouts']))}\n{fault_table(faulty)}" if faulty else ""
    held = f"Mean reward of the 100 validation rows: {before:.3f} before the first step, {after:.3f} after the last one."
    table = "\n".join(lines)
    return f"# {page.title}\n\n{facts}\n\n{held}\n\n{table}\n\n{NOTES.partition(chr(10))[2]}{faults}"


def table(native: list[float], ours: list[float], steps: list[Step]) -> str:
    """Markdown: one line per step."""
    names = ["step", "reward, native", "reward, Agent Lightning", "in its store", "resources", "weights", "rollouts", "calls"]
    lines = [f"| {' | '.join([*names, 'triplets', 'attempts lost'])} |", f"|{'--:|' * 10}"]
    for number, (one, other, step) in enumerate(zip(native, ours, steps), start=1):
        cells = [number, f"{one:.3f}", f"{other:.3f}", f"{step.reward:.3f}", *map(_listed, (step.resources, step.weights))]
        cells += [step.num_rollouts, step.calls, step.triplets, step.lost]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def fault_table(store: dict[str, Any]) -> str:
    """Markdown: each rollout of Agent Lightning that failed, and the one that took its place."""
    lines = [
        "| rollout of vime | weights | attempt 0 | its calls | attempt 1 | its calls | reward |",
        "|---|--:|---|--:|---|--:|--:|",
    ]
    for lost in (rollout for rollout in store["rollouts"] if rollout["status"] != "succeeded"):
        later = [held for held in store["rollouts"] if held["vime_session"] == lost["vime_session"] and held is not lost]
        for held in later:
            cells = [lost["vime_rollout"], lost["weight_version"], _attempt(lost), lost["calls"], _attempt(held), held["calls"]]
            lines.append(f"| {' | '.join(map(str, cells))} | {held['reward']:g} |")
    return "\n".join(lines) + "\n"


def _attempt(rollout: dict[str, Any]) -> str:
    [[_, status, runner]] = rollout["attempts"]
    return f"{status}, {runner}"


def rows(native: list[float], ours: list[float], steps: list[Step]) -> list[dict[str, Any]]:
    """The table's rows as data."""
    return [
        {
            **asdict(step),
            "resources": sorted(step.resources),
            "weights": sorted(step.weights),
            "step": number,
            "native": one,
            "agent_lightning": other,
        }
        for number, (one, other, step) in enumerate(zip(native, ours, steps), start=1)
    ]


def _listed(versions: set[int]) -> str:
    return ", ".join(map(str, sorted(versions)))


def main() -> None:
    """Trains both and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--environment",
        action="store_true",
        help="make Agent Lightning's environments, and end",
    )
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="where the runs are kept; a run that is there is not run again")
    parser.add_argument("--faults", action="store_true", help="also train with a runner that is killed and an attempt that fails")
    parser.add_argument("--service", action="store_true", help="train on the training service, with the loop in the trainer")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    AGENT_LIGHTNING.build()
    if options.environment:
        if shutil.which(AGENT_LIGHTNING_SERVER.interpreter):
            AGENT_LIGHTNING_SERVER.build()
        return
    page = Result(title="Agent Lightning on the training service" if options.service else "Agent Lightning")
    if options.service:
        out = options.out or Path(tempfile.mkdtemp(prefix="vime-agent-lightning-"))
        out.mkdir(parents=True, exist_ok=True)
        words = ["model=tiny", f"model.checkpoint={CHECKPOINT}", f"output_dir={out / 'service'}"]
        with served(words, SERVICE_PORT, out / "service.log") as url:
            store = train_on_service(url, out / "service.json", options.steps)
            faulty = train_on_service(url, out / "service_faults.json", 3, *FAULT_OPTIONS) if options.faults else None
        text = service_page(page, store, faulty)
        sys.stdout.write(text)
        if options.markdown:
            options.markdown.write_text(text)
        return
    words = [*TASK, f"trainer.num_steps={options.steps}", f"seed={options.seed}"]
    out = options.out or Path(tempfile.mkdtemp(prefix="vime-agent-lightning-"))
    ours, store = train_with_agent_lightning(words, out / "agent_lightning")
    native, steps = train(words, out / "native"), steps_of(store)
    found, faults = table(native, ours, steps), ""
    if options.faults:
        _, faulty = train_with_agent_lightning(FAULT_WORDS, out / "faults", *FAULT_OPTIONS)
        faults = f"\n{FAULTS.format(num_rollouts=len(faulty['rollouts']))}\n{fault_table(faulty)}"
    sys.stdout.write(found)
    if options.json:
        options.json.write_text(json.dumps(rows(native, ours, steps), indent=1) + "\n")
    if options.markdown:
        facts = "\n".join(f"- {fact}" for fact in circumstances(page))
        options.markdown.write_text(f"# {page.title}\n\n{facts}\n\n{found}\n{NOTES}{faults}")


if __name__ == "__main__":
    main()
