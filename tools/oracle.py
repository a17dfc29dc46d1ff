"""This checkout beside an earlier one, the oracle: the same rollouts, the same gradients, the same steps, method by method.

    python tools/oracle.py --against FOLDER [--methods NAME …] [--comparisons rollouts updates steps]
                           [--keep FOLDER] [--json PATH] [--markdown PATH]

FOLDER is a checkout of another commit; `--against .` compares this one with itself, which shows what is reproducible at all. All
runs are real (Ray, vLLM, Megatron) and made with `deterministic=true`:

- rollouts: two steps at a learning rate that changes no weight; tokens, masks, logprobs, versions, rewards, ends and order;
- updates: the batches that the oracle recorded, through the trainer of each side; gradients, weights and metrics;
- steps: three steps of training; the same as for rollouts, the trainer's logprobs, metrics, and the weights at the end.

Each side reads its records, and trains, by its own checkout's `tools/oracle_side.py`. Seconds in metadata are not compared.

A cell says "equal" where everything is the same bit for bit, else the largest difference relative to the largest value and where
it is. Ends with 1 if anything differs by more than 1e-6.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench_rows import ROOT, Result, circumstances

LIMIT = 1e-6
"""Largest difference, relative to the largest value of a tensor, where the order of a sum has changed."""
RUN_SECONDS = 3600
"""Longest run of one side, in seconds."""
RECORDED = "recorded.json"
COMPARISONS = ("rollouts", "updates", "steps")
USUAL = ("deterministic=true", "logger.rollouts=tokens", "evaluation.before=none", "evaluation.rows=[]", "trainer.save_every=100")
FROZEN = ("trainer.num_steps=2", "trainer.lr=1e-30", "trainer.min_lr=0", "trainer.warmup_steps=0")
TRAINED = ("trainer.num_steps=3", "trainer.warmup_steps=0")
METHODS: dict[str, tuple[str, ...]] = {
    "memagent": ("+method=memagent",),
    "agentflow": ("+method=agentflow",),
    "toolorchestra": ("+method=toolorchestra",),
    "coding": ("+method=coding",),
    "retool": ("+method=retool",),
    "search_r1": ("+method=search_r1",),
    "multi_agent": ("+method=multi_agent",),
    "calculator": ("+experiment=smollm2_asdiv", "rehearse=true", "method.rehearsal=tools/oracle_script.py:Calculator"),
    "database (behind the gateway)": ("+experiment=database_tiny",),
}
"""The words of each method's laptop task; the calculator, which has none, rehearses two steps with scripted replies."""
MEASURED = (
    *("time/", "seconds/", "serving/", "utilization/", "machine/", "server/", "sync/", "calls/"),
    *("sandbox/", "workspace/", "retrieval/"),
)
"""Beginnings of the names of metrics that a clock or a machine decides."""
CLOCKED = ("second", "in_flight", "buffered", "staleness")


@dataclass(kw_only=True, slots=True)
class Differences:
    """Differences between two sides, by place. Example: `Differences(found={"steps: weights, lm_head": 3e-7})`."""

    found: dict[str, float] = field(default_factory=dict)
    num_compared: int = 0

    def exact(self, place: str, one: Any, other: Any) -> None:
        """Compares two values; different ones count as infinitely far apart, unless they are numbers or lists of reals."""
        self.num_compared += 1
        if one == other or (one != one and other != other):
            return
        self.found[place] = max(_distance(one, other), self.found.get(place, 0.0))

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
        """True if nothing differs by more than the limit."""
        return bool(self.num_compared) and all(far <= LIMIT for far in self.found.values())


def _distance(one: Any, other: Any) -> float:
    """Relative to the largest value."""
    if isinstance(one, list):
        values: list[Any] = [*one, *other] if isinstance(other, list) else [None]
        if not all(isinstance(value, float) for value in values) or len(one) != len(other):
            return float("inf")
        return max(abs(left - right) for left, right in zip(one, other)) / max(abs(value) for value in values)
    is_number = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in (one, other))
    return abs(one - other) / max(abs(one), abs(other)) if is_number else float("inf")


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

    def tool(self, *words: str) -> None:
        """Runs the checkout's own `oracle_side.py`."""
        self.program(str(self.checkout / "tools" / "oracle_side.py"), *words)

    def recorded(self, run: Path) -> list[dict[str, Any]]:
        """The rollouts of a run in plain numbers, which stay in its folder."""
        self.tool("rollouts", str(run), str(run / RECORDED))
        return json.loads((run / RECORDED).read_text())

    def run(self, method: str, comparison: str, words: tuple[str, ...]) -> Path:
        """The folder of a run, made once."""
        folder = self.folder / method.split()[0] / comparison
        if not (folder / "summary.json").exists():
            self.program("-m", "vime.run", *METHODS[method], *USUAL, *words, f"output_dir={folder}")
        return folder


def compare(method: str, comparison: str, ours: Side, oracle: Side) -> Differences:
    """One cell of the table."""
    differences = Differences()
    if comparison == "updates":
        _compare_updates(differences, method, ours, oracle)
        return differences
    words = FROZEN if comparison == "rollouts" else TRAINED
    one, other = (side.run(method, comparison, words) for side in (ours, oracle))
    compare_rollouts(differences, ours.recorded(one), oracle.recorded(other))
    if comparison == "steps":
        _compare_metrics(differences, *(_lines(folder / "metrics.jsonl") for folder in (one, other)))
        differences.tensors("weights", *(folder / "model" / "model.safetensors" for folder in (one, other)))
    return differences


def compare_rollouts(differences: Differences, ours: list[dict[str, Any]], others: list[dict[str, Any]]) -> None:
    """Compares the records of two sides; see `oracle_side.py`."""
    differences.exact("number of rollouts", len(ours), len(others))
    for left, right in zip(ours, others):
        samples = left.pop("samples"), right.pop("samples")
        for key in sorted(left.keys() | right.keys()):
            differences.exact(key, left.get(key), right.get(key))
        differences.exact("number of sequences", *map(len, samples))
        for mine, theirs in zip(*samples):
            mine, theirs = (sample.pop("columns") | sample for sample in (mine, theirs))
            for key in sorted(mine.keys() | theirs.keys()):
                differences.exact(key, *(_without_clocks(sample.get(key)) for sample in (mine, theirs)))


def _without_clocks(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_clocks(each) for key, each in value.items() if not any(word in key for word in CLOCKED)}
    return [_without_clocks(each) for each in value] if isinstance(value, list) else value


def _compare_metrics(differences: Differences, ours: list[dict[str, Any]], others: list[dict[str, Any]]) -> None:
    for left, right in zip(ours, others, strict=True):
        for key in sorted(left.keys() | right.keys()):
            if not key.startswith(MEASURED) and key != "time" and not any(word in key for word in CLOCKED):
                differences.exact(key, left.get(key), right.get(key))


def _compare_updates(differences: Differences, method: str, ours: Side, oracle: Side) -> None:
    """Batches are those of the oracle's run of three steps; each has an optimizer step."""
    run = oracle.run(method, "steps", TRAINED)
    oracle.recorded(run)
    folders: list[Path] = []
    for side in (ours, oracle):
        folders.append(side.folder / method.split()[0] / "updates")
        folders[-1].mkdir(parents=True, exist_ok=True)
        side.tool("updates", str(run / RECORDED), str(folders[-1]), *METHODS[method], *USUAL, *TRAINED)
    for name in sorted(path.name for path in folders[0].glob("*.safetensors")):
        differences.tensors(name.removesuffix(".safetensors"), *(folder / name for folder in folders))
    _compare_metrics(differences, *(json.loads((folder / "metrics.json").read_text()) for folder in folders))


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
