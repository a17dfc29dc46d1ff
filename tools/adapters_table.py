"""Several adapters trained in one run beside a run of each alone: rewards of every step, and steps a minute.

    python tools/adapters_table.py outputs/smollm2_adapters/… --alone sentiment=RUN questions=RUN … --out results/four_tasks

The minutes are those of whole runs, from the start of Ray to the last step, with what each of them starts: a run of several
adapters has one start, one server and one trainer for all. Rewards are means of a step's rollouts.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from vime.files.jsonl import write_text
from vime.preflight.compose import ADAPTERS
from vime.report.metrics_file import read_metrics
from vime.report.results_page import OurRun, read_our_run
from vime.report.summary import read_summary
from vime.surroundings import settle


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """An adapter's training, in a run with others or alone."""

    run: OurRun
    rewards: list[float]
    num_rollouts: int
    num_failed: int
    seconds: float
    """From the start of its run to its end."""


def trained(folder: Path) -> Trained:
    """The training in a folder. Raises SystemExit for one that has not ended."""
    summary: dict[str, Any] | None = read_summary(folder)
    if summary is None:
        raise SystemExit(f"{folder} has no summary.json: the run has not ended")
    return Trained(
        run=read_our_run(folder),
        rewards=[row["reward/mean"] for row in read_metrics(folder / "metrics.jsonl") if "reward/mean" in row],
        num_rollouts=summary["num_rollouts"],
        num_failed=summary["num_failed_rollouts"],
        seconds=summary["wall_seconds"],
    )


def page(together: dict[str, Trained], alone: dict[str, Trained]) -> str:
    """The table of all adapters, and the sums under it."""
    about = next(iter(together.values())).run.about
    lines = [
        "# Several adapters in one run, beside runs of one",
        "",
        "Written by `python tools/adapters_table.py`: each adapter trained beside the others, and in a run of its own with the",
        "same settings. Minutes are those of whole runs with their starts. Each run samples for itself, so rewards differ by",
        "chance, and with a filter also the number of rollouts; `tests/trainer/test_lora.py` shows that gradients and weights",
        "are the same bit for bit on the same tokens.",
        "",
        f"`{about['command']}`",
        "",
        f"Commit {about['commit']}, {about['date']}, {about['hardware']}.",
        "",
        "| adapter | run | rollouts | failed | reward of each step | minutes |",
        "|---|---|--:|--:|---|--:|",
    ]
    for name, own in together.items():
        for where, each in (("together", own), ("alone", alone[name])):
            rewards = " ".join(f"{reward:.2f}" for reward in each.rewards)
            minutes = f"{each.seconds / 60:.1f}"
            lines.append(f"| {name} | {where} | {each.num_rollouts} | {each.num_failed} | {rewards} | {minutes} |")
    lines += ["", "Alone:", "", *(f"- {name}: `{each.run.about['command']}`" for name, each in alone.items())]
    steps = sum(len(each.rewards) for each in together.values())
    all_steps = sum(len(each.rewards) for each in alone.values())
    whole, after = max(each.seconds for each in together.values()), sum(each.seconds for each in alone.values())
    ratio = (steps / whole) / (all_steps / after)
    lines += [
        "",
        f"Together: {steps} steps in {whole / 60:.1f} minutes, {60 * steps / whole:.2f} a minute. One run after the other: "
        f"{all_steps} steps in {after / 60:.1f} minutes, {60 * all_steps / after:.2f} a minute. Together / one after the other: "
        f"{ratio:.2f}.",
    ]
    return "\n".join([*lines, ""])


def main() -> None:
    """Prints the page, or writes it."""
    settle()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of the run with several adapters")
    parser.add_argument("--alone", nargs="+", required=True, metavar="NAME=RUN", help="folder of the run of each adapter alone")
    parser.add_argument("--out", type=Path, help="path of the page without its ending")
    given = parser.parse_args()
    folders = dict(each.split("=", 1) for each in given.alone if "=" in each)
    names = sorted(path.name for path in (given.run / ADAPTERS).iterdir())
    if set(folders) != set(names) or len(folders) != len(given.alone):
        parser.error(f"--alone: give NAME=RUN for each of {', '.join(names)}")
    together = {name: trained(given.run / ADAPTERS / name) for name in folders}
    text = page(together, {name: trained(Path(folder)) for name, folder in folders.items()})
    if given.out is None:
        Console(soft_wrap=True).print(text, markup=False)
    else:
        write_text(given.out.with_suffix(".md"), text)


if __name__ == "__main__":
    main()
