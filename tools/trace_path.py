"""Files of vime that a sample passes on its way to the loss, and weights on theirs to `load_weights`: counted in a real run.

    python tools/trace_path.py [--checkout FOLDER] [--json PATH] [WORD…]

Runs `python -m vime.run` with these words, or one step of the tiny MemAgent task, under a probe in each of its processes
(`path_probe.py`).

**What counts.** A *thing* is a turn, a sample, a rollout, a group or what the trainer packs of them; or a named tensor or an
object that represents a set of them; alone or in a container. A file hands a thing on if one of its functions returns it, or
calls a function of another file with it among the arguments. A file is on the way if it hands the thing on and the thing comes to
the loss from there. Code that only looks at it is not on the way (metrics, journal and logs hand on numbers or nothing). Neither
are the methods of the types themselves (`vime/types`), code that waits for others (`vime/tasks.py`), code that carries it between
processes (Ray, HTTP), and an agent outside `vime/`. Threads, queues and processes make a hand-over invisible, so a thing that is
handed to them counts as handed to all code that takes something from them: rather a file too many than one too few.

Beside them are the frames of vime on the stack where an agent's `generate` is entered, and the forms of a sample: the classes on
its way from the client's answer to the loss that hold its token ids themselves, and not by way of another one.

Files are listed by their distance from the end of the way. `--checkout` looks at another version of the project, with the same
packages.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import path_probe
from path_probe import FORM, FRAMES, LOAD_WEIGHTS, LOSS, OUTSIDE, SAMPLE, WEIGHT

HERE = Path(__file__).resolve().parent
WORDS = [
    "+method=memagent",
    "trainer.num_steps=1",
    "rollout.num_prompts=4",
    "rollout.num_samples_per_prompt=4",
    "rollout.num_workers=1",
    "evaluation.rows=[]",
]
WORKER, PRODUCER = "workers/worker.py", "orchestration/producer.py"


@dataclass(frozen=True, kw_only=True, slots=True)
class HandOver:
    """Example: `HandOver(process="4711", giver="workers/pool.py", taker="orchestration/producer.py")`."""

    process: str
    giver: str
    taker: str


def read(folder: Path) -> dict[str, list[HandOver]]:
    """All notes of the probes, by the thing that was handed over."""
    found: defaultdict[str, list[HandOver]] = defaultdict(list)
    for file in sorted(folder.glob("*.txt")):
        for line in file.read_text().splitlines():
            kind, giver, taker = line.split("\t")
            found[kind].append(HandOver(process=file.stem, giver=giver, taker=taker))
    return found


def way(found: list[HandOver], goal: str) -> list[str]:
    """The files from which the thing came to the goal, the farthest first."""
    takers, pairs = {each.taker for each in found}, {(each.giver, each.taker) for each in found}
    pairs |= {(OUTSIDE, giver) for giver, _ in pairs if giver not in takers}  # awaited from another process
    distance = distances({(taker, giver) for giver, taker in pairs}, goal)
    return sorted(distance.keys() - {OUTSIDE, goal}, key=lambda file: (-distance[file], file))


def before_producer(found: list[HandOver]) -> set[str]:
    """The files through which a sample comes to the producer: those in the workers, and in the driver those behind them."""
    workers = {each.process for each in found if each.giver == WORKER}
    pairs = {(each.giver, each.taker) for each in found if OUTSIDE not in (each.giver, each.taker)}
    behind = distances({(taker, giver) for giver, taker in pairs}, PRODUCER).keys() - distances(pairs, PRODUCER).keys()
    return behind | {each.giver for each in found if each.process in workers}


def frames(found: list[HandOver]) -> list[str]:
    """The most functions of vime that were on the stack where an agent began, the innermost first."""
    return max((each.taker.split(" < ") for each in found), key=len, default=[])


def distances(pairs: set[tuple[str, str]], start: str) -> dict[str, int]:
    """The number of steps from the start to each name that can be reached by pairs of from and to."""
    found, newest = {start: 0}, {start}
    while newest:
        newest = {to for origin, to in pairs if origin in newest} - found.keys()
        found |= dict.fromkeys(newest, max(found.values()) + 1)
    return found


def run(words: list[str], *, checkout: Path, folder: Path) -> int:
    """Runs the program under the probe; returns its exit code."""
    (folder / "sitecustomize.py").write_text(
        f"import sys\nsys.path.append({str(HERE)!r})\nimport path_probe\npath_probe.install()\n"
    )
    paths = [str(folder), str(checkout), os.environ.get("PYTHONPATH", "")]
    environment = {path_probe.FOLDER: str(folder), path_probe.ROOT: str(checkout), "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "vime.run", *words, f"output_dir={folder / 'run'}"]
    return subprocess.run(command, cwd=checkout, env={**os.environ, **environment}, check=False).returncode


def main() -> int:
    """Runs, then shows both ways; ends with 1 if the run failed or a way has no end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="WORD", help="what to run; one step of the tiny MemAgent task by default")
    parser.add_argument("--checkout", type=Path, default=HERE.parent, help="the version to look at (default: this one)")
    parser.add_argument("--json", type=Path, help="write the files here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trace-path-") as name:
        code = run(options.words or WORDS, checkout=options.checkout.resolve(), folder=Path(name))
        found = read(Path(name))
    sample, weight = way(found[SAMPLE], LOSS), way(found[WEIGHT], LOAD_WEIGHTS)
    early = before_producer(found[SAMPLE])
    ways = {
        "a sample passes to the producer": [file for file in sample if file in early],
        "and from the producer to the loss": [file for file in sample if file not in early],
        "weights pass": weight,
    }
    for title, files in ways.items():
        print(f"\n{title}: {len(files)} files", *files, sep="\n  ")
    ways |= {"frames where an agent begins": frames(found[FRAMES]), "forms": sorted({each.taker for each in found[FORM]})}
    for title in ("frames where an agent begins", "forms"):
        print(f"\n{title}: {len(ways[title])}", *ways[title], sep="\n  ")
    if options.json:
        options.json.write_text(json.dumps(ways, indent=2) + "\n")
    return 1 if code or not sample or not weight else 0


if __name__ == "__main__":
    sys.exit(main())
