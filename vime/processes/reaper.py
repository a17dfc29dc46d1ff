"""Makes sure that no process of a run outlives its driver, even after a kill -9, which Ray's own agents do not always notice.

    python -m vime.processes.reaper --owner PID --remove FOLDER...

It remembers every process below the owner. Once the owner is gone, it gives them a moment, ends what is left, and removes the
folders. On SIGTERM it exits without doing anything, because the owner has stopped its parts itself.
"""

import argparse
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

POLL_SECONDS = 0.5
GRACE_SECONDS = 4.0
"""Servers and actors that notice the end of the driver themselves clean up better than the reaper can."""
SUPERVISOR_SECONDS = 40.0
"""Longer than a supervisor takes to end its program and to remove its shared memory."""


def start_reaper(*, owner: int, remove: list[Path]) -> "subprocess.Popen[bytes]":
    """Starts a reaper in a session of its own, so that Ctrl-C in the terminal does not end it first.

    It holds no file of the owner's: a pipe that the owner writes to ends with the owner's part in it.
    """
    command = [sys.executable, "-m", "vime.processes.reaper", "--owner", str(owner), "--remove", *map(str, remove)]
    nowhere = subprocess.DEVNULL
    return subprocess.Popen(command, start_new_session=True, stdin=nowhere, stdout=nowhere, stderr=nowhere)


def watch(owner: psutil.Process) -> set[psutil.Process]:
    """Waits for the owner's end; returns all processes that were ever seen below it."""
    seen: set[psutil.Process] = set()
    me = psutil.Process()
    while owner.is_running() and owner.status() != psutil.STATUS_ZOMBIE:
        try:
            seen |= set(owner.children(recursive=True)) - {me}
        except psutil.NoSuchProcess:
            break
        time.sleep(POLL_SECONDS)
    return seen


def end(processes: set[psutil.Process]) -> None:
    """Kills the processes that are left after the grace period; supervisors of servers last, since they clean up after those."""
    supervisors = {process for process in processes if _is_supervisor(process)}
    for group, seconds in ((processes - supervisors, GRACE_SECONDS), (supervisors, SUPERVISOR_SECONDS)):
        _, alive = psutil.wait_procs(list(group), timeout=seconds)
        for process in alive:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                pass  # it ended meanwhile
        psutil.wait_procs(alive, timeout=GRACE_SECONDS)


def _is_supervisor(process: psutil.Process) -> bool:
    try:
        return "vime.processes.launch" in process.cmdline()
    except psutil.Error:
        return False


def main() -> None:
    """Reads the command line and watches."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--owner", type=int, required=True)
    parser.add_argument("--remove", type=Path, required=True, nargs="+")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        owner = psutil.Process(arguments.owner)
    except psutil.NoSuchProcess:
        return
    end(watch(owner))
    for folder in arguments.remove:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
