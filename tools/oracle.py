"""This checkout beside an earlier one, the oracle: the same rollouts, the same gradients, the same steps, method by method.

    python tools/oracle.py --against FOLDER [--methods NAME …] [--comparisons rollouts updates steps]
                           [--keep FOLDER] [--json PATH] [--markdown PATH]

FOLDER is a checkout of another commit; `--against .` compares this one with itself, which shows what repeats itself at all. All
runs are real (Ray, vLLM, Megatron) and made with `deterministic=true`:

- rollouts: two steps at a learning rate that changes no weight; tokens, masks, logprobs, versions, rewards, ends and order;
- updates: the batches that the oracle recorded, through the trainer of each side; gradients, weights and metrics;
- steps: three steps of training; the same as for rollouts, the trainer's logprobs, metrics, and the weights at the end.

A cell says "equal" where everything is the same bit for bit, else the largest difference relative to the largest value and where
it is. Ends with 1 if anything differs by more than 1e-6.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench_rows import ROOT, Result, circumstances

LIMIT = 1e-6
"""Largest difference, relative to the largest value of a tensor, where the order of a sum has changed."""
RUN_SECONDS = 3600
"""Longest run of one side, in seconds."""
COMPARISONS = ("rollouts", "updates", "steps")
USUAL = ("deterministic=true", "logger.rollouts=tokens", "evaluation.before=none", "evaluation.rows=[]", "trainer.save_every=100")
FROZEN = ("trainer.num_steps=2", "trainer.lr=1e-30", "trainer.min_lr=0", "trainer.warmup_steps=0")
TRAINED = ("trainer.num_steps=3", "trainer.warmup_steps=0")
REHEARSED = ("rehearse=true",)
METHODS: dict[str, tuple[str, ...]] = {
    "memagent": ("+method=memagent",),
    "agentflow": ("+method=agentflow",),
    "toolorchestra": ("+method=toolorchestra",),
    "coding": ("+method=coding",),
    "retool": ("+method=retool",),
    "search_r1": ("+method=search_r1",),
    "multi_agent": ("+method=multi_agent",),
    "database (behind the gateway)": ("+experiment=database_tiny",),
}
"""The words of each method's laptop task."""
COLUMNS = ("tokens", "loss_mask", "rollout_log_probs", "weight_versions", "trainer_log_probs")
OF_ROLLOUT = ("step", "group_index", "rollout_id", "dataset", "row", "reward", "metrics", "stop_reason", "status", "num_retries")
OF_SAMPLE = ("response", "num_prompt_tokens", "response_length", "reward", "metadata", "advantage", "remove_sample")
MEASURED = ("time/", "seconds/", "serving/", "utilization/", "server/", "sync/", "calls/", "sandbox/", "workspace/", "retrieval/")
"""Beginnings of the names of metrics that a clock or a machine decides."""
CLOCKED = ("second", "in_flight", "buffered", "staleness")


@dataclass(kw_only=True, slots=True)
class Differences:
    """What two sides differ in, by place. Example: `Differences(found={"steps: weights, lm_head": 3e-7})`."""

    found: dict[str, float] = field(default_factory=dict)
    num_compared: int = 0

    def exact(self, place: str, one: Any, other: Any) -> None:
        """Compares two values; different ones count as infinitely far apart, numbers by their difference."""
        self.num_compared += 1
        if one == other or (one != one and other != other):
            return
        is_number = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in (one, other))
        far = abs(one - other) / max(abs(one), abs(other)) if is_number else float("inf")
        self.found[place] = max(far, self.found.get(place, 0.0))

    def tensors(self, place: str, one: Path, other: Path) -> None:
        """Compares two files of tensors."""
        from safetensors.torch import load_file

        ours, others = load_file(one), load_file(other)
        self.exact(f"{place}: names", sorted(ours), sorted(others))
        for name in sorted(set(ours) & set(others)):
            self.num_compared += 1
            left, right = ours[name].float(), others[name].float()
            if left.shape != right.shape:
                self.found[f"{place}: {name}"] = float("inf")
            elif not bool((left == right).all()):
                self.found[f"{place}: {name}"] = float((left - right).abs().max() / right.abs().max())

    def cell(self) -> str:
        """The cell of a table."""
        if not self.num_compared:
            return "nothing was compared"
        if not self.found:
            return f"equal ({self.num_compared:,} values)"
        place, worst = max(self.found.items(), key=lambda item: item[1])
        far = "differs" if worst == float("inf") else f"{worst:.1e}"
        return f"**{far}** at {place} ({len(self.found):,} of {self.num_compared:,})"

    @property
    def is_within(self) -> bool:
        """Nothing differs by more than the limit."""
        return bool(self.num_compared) and all(far <= LIMIT for far in self.found.values())


@dataclass(kw_only=True, slots=True)
class Side:
    """A checkout and the folder of its runs."""

    checkout: Path
    folder: Path

    def program(self, *command: str) -> None:
        """Runs a Python program on the code of the checkout; raises RuntimeError with the end of its output."""
        environment = os.environ | {"PYTHONPATH": str(self.checkout)}
        line = [sys.executable, *command]
        done = subprocess.run(line, cwd=self.checkout, env=environment, capture_output=True, text=True, timeout=RUN_SECONDS)
        if done.returncode:
            raise RuntimeError(f"{self.checkout}: {' '.join(command)} ended with {done.returncode}\n{done.stderr[-2000:]}")

    def run(self, method: str, comparison: str, words: tuple[str, ...]) -> Path:
        """The folder of a run, made once."""
        folder = self.folder / method.split()[0] / comparison
        if not (folder / "summary.json").exists():
            self.program("-m", "vime.run", *METHODS[method], *USUAL, *words, f"output_dir={folder}")
        return folder


def compare(method: str, comparison: str, ours: Side, oracle: Side) -> Differences:
    """One cell."""
    differences = Differences()
    if comparison == "updates":
        _compare_updates(differences, method, ours, oracle)
        return differences
    words = FROZEN if comparison == "rollouts" else TRAINED
    one, other = (side.run(method, comparison, words) for side in (ours, oracle))
    _compare_rollouts(differences, one, other)
    if comparison == "steps":
        _compare_metrics(differences, *(_lines(folder / "metrics.jsonl") for folder in (one, other)))
        differences.tensors("weights", *(folder / "model" / "model.safetensors" for folder in (one, other)))
    return differences


def _compare_rollouts(differences: Differences, one: Path, other: Path) -> None:
    files = [sorted(path.name for path in (folder / "rollouts").glob("*.jsonl")) for folder in (one, other)]
    differences.exact("files of rollouts", *files)
    for name in files[0]:
        ours, others = (_lines(folder / "rollouts" / name) for folder in (one, other))
        differences.exact("number of rollouts", len(ours), len(others))
        for left, right in zip(ours, others):
            for key in OF_ROLLOUT:
                differences.exact(key, left.get(key), right.get(key))
            differences.exact("number of sequences", len(left["samples"]), len(right["samples"]))
            for mine, theirs in zip(left["samples"], right["samples"]):
                for key in (*OF_SAMPLE, *COLUMNS):
                    differences.exact(key, mine.get(key), theirs.get(key))


def _compare_metrics(differences: Differences, ours: list[dict[str, Any]], others: list[dict[str, Any]]) -> None:
    for left, right in zip(ours, others, strict=True):
        for key in sorted(left.keys() | right.keys()):
            if not key.startswith(MEASURED) and key != "time" and not any(word in key for word in CLOCKED):
                differences.exact(key, left.get(key), right.get(key))


def _compare_updates(differences: Differences, method: str, ours: Side, oracle: Side) -> None:
    """Batches are those of the oracle's run of three steps, of which each has an optimizer step."""
    recorded = oracle.run(method, "steps", TRAINED)
    batches = oracle.folder / method.split()[0] / "batches.json"
    batches.write_text(json.dumps(list(_batches(recorded))))
    folders = []
    for side in (ours, oracle):
        folders.append(side.folder / method.split()[0] / "updates")
        folders[-1].mkdir(parents=True, exist_ok=True)
        program = str(side.checkout / "tools" / "oracle_updates.py")
        side.program(program, str(batches), str(folders[-1]), *METHODS[method], *USUAL, *TRAINED)
    for name in sorted(path.name for path in folders[0].glob("*.safetensors")):
        differences.tensors(name.removesuffix(".safetensors"), *(folder / name for folder in folders))
    _compare_metrics(differences, *(json.loads((folder / "metrics.json").read_text()) for folder in folders))


def _batches(run: Path) -> Iterator[list[dict[str, Any]]]:
    from vime.types import COLUMNS as DTYPES
    from vime.types import Column

    names = {"tokens": "tokens", "loss_mask": "loss_mask", "logprobs": "rollout_log_probs"}
    for path in sorted((run / "rollouts").glob("*.jsonl")):
        samples = [sample for rollout in _lines(path) for sample in rollout["samples"] if sample.get("advantage")]
        yield [
            {name: list(Column.read(sample[column], DTYPES[column])) for name, column in names.items()}
            | {"advantage": sample["advantage"]}
            for sample in samples
        ]


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def page(result: Result, cells: dict[str, dict[str, Differences]], comparisons: list[str], against: Path) -> str:
    """The table."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=against, capture_output=True, text=True).stdout.strip()
    facts = [*circumstances(result), f"the oracle: commit {commit}"]
    lines = [f"# {result.title}", "", *(f"- {fact}" for fact in facts), ""]
    lines += [f"| method | {' | '.join(comparisons)} |", "|---|" + "---|" * len(comparisons)]
    lines += [f"| {method} | {' | '.join(found[name].cell() for name in comparisons)} |" for method, found in cells.items()]
    return "\n".join([*lines, ""])


def main() -> None:
    """Compares and shows the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, required=True, metavar="FOLDER", help="the other checkout")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--comparisons", nargs="+", default=list(COMPARISONS), choices=COMPARISONS)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the runs here; those of the oracle are used again")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    result = Result(title="This checkout beside an earlier one")
    with tempfile.TemporaryDirectory(prefix="vime-oracle-") as temporary:
        kept = (options.keep or Path(temporary)).resolve()
        oracle = Side(checkout=options.against.resolve(), folder=kept / "oracle")
        ours = Side(checkout=ROOT, folder=Path(temporary) / "ours")
        cells: dict[str, dict[str, Differences]] = {}
        for method in options.methods:
            cells[method] = {}
            for comparison in options.comparisons:
                cells[method][comparison] = found = compare(method, comparison, ours, oracle)
                sys.stdout.write(f"{method}, {comparison}: {found.cell()}\n")
                sys.stdout.flush()
    text = page(result, cells, options.comparisons, oracle.checkout)
    if options.markdown:
        options.markdown.write_text(text, encoding="utf-8")
    if options.json:
        values = {method: {name: found.found for name, found in of_method.items()} for method, of_method in cells.items()}
        options.json.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    if not all(found.is_within for of_method in cells.values() for found in of_method.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
