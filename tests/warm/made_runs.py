"""A function in the place of `vime.run.run`, by which a host makes runs that only say what they are."""

import os
import sys
import time

RUNS: list[str] = []


def run(words: list[str], *, started: float) -> int:
    """Does what its first word says, and returns the exit code."""
    RUNS.append(words[0])
    sys.stdout.write(f"run {len(RUNS)} in {os.getpid()}: {' '.join(words)}\n")
    match words[0]:
        case "fail":
            return 1
        case "raise":
            raise RuntimeError("this run raises")
        case "exit":
            sys.exit(5)
        case "die":
            os._exit(9)
        case "wait":
            try:
                sys.stdout.write("waiting\n")
                time.sleep(60)
            except KeyboardInterrupt:
                return 130
    return 0
