"""Makes a run folder of very many rollouts, and measures the size and the speed of the viewer's index of it.

    python tools/bench_view.py FOLDER [--num-rollouts 1000000] [--json PATH]

The folder is kept; where it holds the rollouts already, only the index is made anew. Each rollout has four turns with a tool.
"""

import argparse
import json
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from bench_rows import Result, add_options, finish

from vime.files.jsonl import write_lines, write_text
from vime.view.query import Filters, facets, find
from vime.view.rollout_index import RolloutIndex

PER_STEP, GROUP_SIZE, NUM_TURNS = 500, 10, 4
SYLLABLES = [consonant + vowel for consonant in "bdfklmnrs" for vowel in "aeio"]
WORDS = [a + b + c for a in SYLLABLES for b in SYLLABLES for c in SYLLABLES[:16]]
STOPS = ("answered", "answered", "answered", "token_limit", "turn_limit", "time_limit", "sandbox_crashed")
TOOLS = ("search", "python", "read_file", "shell")
SEARCHES: dict[str, Any] = {
    "all": Filters(),
    "a step": Filters(min_step=40, max_step=40),
    "a data set": Filters(dataset="set_1"),
    "reward 0": Filters(max_reward=0.0),
    "a negative advantage": Filters(max_advantage=0.0),
    "a stop reason": Filters(stop_reason="time_limit"),
    "long ones": Filters(min_tokens=700),
    "a tool": Filters(tool="python"),
    "turns": Filters(min_turns=4),
    "failed": Filters(failed=1),
    "an item": Filters(item=17),
    "a rare word": Filters(text=WORDS[-1]),
    "a word in every text": Filters(text="tool_call"),
    "a common word, of a stop reason": Filters(text="tool_call", stop_reason="time_limit"),
    "a common word and a tool": Filters(text="tool_call", tool="python"),
    "five filters": Filters(dataset="set_1", max_reward=0.5, stop_reason="time_limit", tool="python", min_tokens=300),
}


def main() -> None:
    """Makes the folder, indexes it in a process of its own, and shows the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--num-rollouts", type=int, default=1_000_000)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    add_options(parser)
    given = parser.parse_args()
    if given.measure:
        sys.stdout.write(json.dumps(measure(given.folder)))
        return
    result = Result(title=f"The viewer's index of {given.num_rollouts:,} rollouts", columns=("measured", "limit"))
    make(given.folder, given.num_rollouts)
    command = [sys.executable, __file__, str(given.folder), "--measure"]
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    for case, value, limit, unit in found:
        if limit is None:
            result.notes.append(f"{case}: {value:,.1f} {unit}")
        else:
            result.add("view", case, ours=value, reference=limit, unit=unit)
    finish(result, given)


def make(folder: Path, num_rollouts: int) -> None:
    """Makes a run folder with `num_rollouts` rollouts; existing step files are kept."""
    (folder / "rollouts").mkdir(parents=True, exist_ok=True)
    write_text(folder / "config.yaml", "mode: train\nname: generated\n")
    for step in range(1, -(-num_rollouts // PER_STEP) + 1):
        path = folder / "rollouts" / f"step_{step:06d}.jsonl"
        if not path.exists():
            write_lines(path, rollouts(step))


def rollouts(step: int) -> Iterator[dict[str, Any]]:
    """The rollouts of a step, always the same."""
    dice = random.Random(step)
    for number in range(PER_STEP):
        group = (step * PER_STEP + number) // GROUP_SIZE
        turns: list[dict[str, Any]] = [{"kind": "prompt", "num_tokens": 60, "text": words(dice, 40)}]
        for turn in range(NUM_TURNS):
            call = f'<tool_call>\n{{"name": "{dice.choice(TOOLS)}", "arguments": {{}}}}\n</tool_call>'
            turns.append({"kind": "reply", "num_tokens": dice.randrange(20, 300), "text": f"{words(dice, 30)} {call}"})
            if turn < NUM_TURNS - 1:
                turns.append({"kind": "environment", "num_tokens": 50, "text": words(dice, 30)})
        reward = float(dice.random() < 0.4)
        sample = {"response": turns[-1]["text"], "num_prompt_tokens": 60, "response_length": 400, "reward": None}
        yield {
            "step": step,
            "group_index": group,
            "rollout_id": group * 1_000_000 + number % GROUP_SIZE,
            "dataset": f"set_{dice.randrange(3)}",
            "row": group % 10_000,
            "messages": [{"role": "user", "content": words(dice, 20)}],
            "ground_truth": [words(dice, 1)],
            "reward": reward,
            "metrics": {"strict": reward},
            "stop_reason": dice.choice(STOPS),
            "status": "completed",
            "error": "",
            "num_retries": 0,
            "generation_seconds": dice.uniform(1, 60),
            "seconds": {"generation": 1.0, "tool": 0.5},
            "counts": {"tool_calls": NUM_TURNS},
            "weight_version": step - 1,
            "samples": [{**sample, "metadata": {}, "advantage": reward - 0.4, "turns": turns}],
        }


def words(dice: random.Random, count: int) -> str:
    """Random words; few are common and most are rare, as in a language."""
    return " ".join(WORDS[int(len(WORDS) * dice.random() ** 4)] for _ in range(count))


def measure(folder: Path) -> list[tuple[str, float, float | None, str]]:
    """Indexes a folder and searches in it: rows of name, value, limit and unit."""
    index = RolloutIndex(folder)
    index.path.unlink()
    index = RolloutIndex(folder)
    started = time.monotonic()
    index.update()
    seconds = time.monotonic() - started
    with closing(index.connection()) as database:
        num_rollouts = find(database, Filters(), limit=1).total
        sizes = dict(database.execute("SELECT name, sum(pgsize) FROM dbstat GROUP BY name"))
        of_text = sum(size for name, size in sizes.items() if name.startswith("texts"))
    found: list[tuple[str, float, float | None, str]] = [
        ("speed of indexing", num_rollouts / seconds, None, "rollouts a second"),
        ("index without text", (sum(sizes.values()) - of_text) / num_rollouts, 2000.0, "bytes a rollout"),
        ("full-text index", of_text / num_rollouts, None, "bytes a rollout"),
    ]
    most = 0.0
    for case, filters in SEARCHES.items():
        for sort in ("", "reward", "seconds"):
            before = time.process_time()
            seconds, total = timed(index, filters, sort)
            most = max(most, time.process_time() - before)
            found.append((f"{case}, by {sort or 'time'}: {total:,} found", seconds, 1.0, "s"))
    found.append(("most CPU time of a search", most, 1.0, "s"))
    with closing(index.connection()) as database:
        started = time.monotonic()
        facets(database)
        found.append(("what there is to filter by", time.monotonic() - started, 1.0, "s"))
    started = time.monotonic()
    index.update()
    found.append(("a look at files that have not changed", time.monotonic() - started, 1.0, "s"))
    found.append(("most memory of the process", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 300.0, "MiB"))
    return found


def timed(index: RolloutIndex, filters: Filters, sort: str) -> tuple[float, int]:
    """Seconds of a search on a new connection, and how many it found."""
    with closing(index.connection()) as database:
        started = time.monotonic()
        total = find(database, filters, sort=sort).total
        return time.monotonic() - started, total


if __name__ == "__main__":
    main()
