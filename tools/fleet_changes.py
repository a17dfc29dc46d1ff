"""A run whose trained model has 1, 3 and again 1 servers, several times, while it trains: is anything lost, is a token stale?

    python tools/fleet_changes.py [--cycles 3] [--sequences 4] [--markdown PATH]

The tiny MemAgent task trains asynchronously, and `vime servers RUN NUMBER` asks for each number once a few steps were made with
the one before. Sampled tokens are then compared with the weights of their versions in transformers, as `tools/version_audit.py`
does. The program ends with 1 if a rollout failed, a server was taken for lost, or a token is not of its version.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import version_audit
from driven_run import DrivenRun, num_steps_done

from vime.files.jsonl import write_text
from vime.report.metrics_file import read_metrics
from vime.surroundings import settle

MOST, STEPS_BETWEEN, WAIT_SECONDS = 3, 2, 900.0
WORDS = [
    "+method=memagent",
    "rollout.max_staleness=1",
    "rollout.num_prompts=8",
    "rollout.num_samples_per_prompt=4",
    "trainer.save_every=1",
    "trainer.keep_checkpoints=1000",
    "evaluation.rows=[]",
    "evaluation.before=none",
    "logger.rollouts=tokens",
    f"serving.models.actor.num_replicas={MOST}",
    "serving.models.actor.gpu_memory_utilization=0.01",
    "serving.elastic.num_at_start=1",
    "serving.elastic.drain_seconds=0.2",
]


def synced(folder: Path) -> list[int]:
    """The number of servers that each sync of a step has reached."""
    file = folder / "metrics.jsonl"
    return [int(row["sync/num_servers"]) for row in read_metrics(file) if "sync/num_servers" in row] if file.exists() else []


def change(run: DrivenRun, number: int) -> float:
    """Asks for a number of servers, and waits until a sync has reached as many; returns the seconds."""
    began, steps = time.monotonic(), num_steps_done(run.folder)
    command = [sys.executable, "-m", "vime.run", "servers", str(run.folder), str(number)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    run.wait_for(lambda: synced(run.folder)[steps:][-1:] == [number], seconds=WAIT_SECONDS)
    seconds = time.monotonic() - began
    steps = num_steps_done(run.folder) + STEPS_BETWEEN
    run.wait_for(lambda: num_steps_done(run.folder) >= steps, seconds=WAIT_SECONDS)
    return seconds


def main() -> None:
    """Trains, asks, and compares."""
    settle()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=3)
    parser.add_argument("--sequences", type=int, default=4, help="the most sequences of each version that are compared (4)")
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="vime-fleet-") as parent:
        run = DrivenRun(Path(parent) / "run", [*WORDS, "trainer.num_steps=1000"], environment={})
        seconds: dict[int, list[float]] = {MOST: [], 1: []}
        try:
            run.wait_for(lambda: num_steps_done(run.folder) >= STEPS_BETWEEN, seconds=WAIT_SECONDS)
            for number in [MOST, 1] * options.cycles:
                seconds[number].append(change(run, number))
            run.driver.terminate()
            run.finish(seconds=WAIT_SECONDS)
        finally:
            run.kill()
        sequences = version_audit.sequences_of(run.folder)
        audited = version_audit.audit(run.folder, sequences, most=options.sequences)
        took = "; ".join(f"{number}: {', '.join(f'{each:.1f}' for each in of)}" for number, of in seconds.items())
        text = "\n".join(
            [
                "# Servers that join and leave",
                "",
                version_audit.section(run.folder, sequences, audited),
                f"Servers at the syncs of all steps: {' '.join(map(str, synced(run.folder)))}.",
                f"Seconds from the question for a number of servers to the end of a step whose sync reached as many; {took}.",
                "",
            ]
        )
        sys.stdout.write(text)
        if options.markdown:
            write_text(options.markdown, text)
        num_failed = sum(row.get("rollout/num_failed", 0) for row in read_metrics(run.folder / "metrics.jsonl"))
        wrong = [one.version for one in audited if one.largest > version_audit.LIMIT]
        if num_failed or wrong or (run.folder / "faults.jsonl").exists():
            sys.exit(f"{num_failed:.0f} failed rollouts, wrong versions {wrong}")


if __name__ == "__main__":
    main()
