"""The supervisor: whatever dies, nothing of the launched program stays behind."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil

PROGRAM = """
    import multiprocessing.shared_memory, os, subprocess, sys, time
    memory = multiprocessing.shared_memory.SharedMemory(create=True, size=64)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    open(sys.argv[1], "w").write(f"{os.getpid()} {child.pid} {memory.name}")
    time.sleep(600)
"""
OWNER = """
    import os, subprocess, sys, time
    launch = [sys.executable, "-m", "vime.processes.launch", f"--owner={os.getpid()}", "--remove", sys.argv[2], "--"]
    supervisor = subprocess.Popen([*launch, sys.executable, "-c", sys.argv[3], sys.argv[1]])
    sys.exit(supervisor.wait())
"""


def until(condition, what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def start_owner(folder: Path) -> tuple[subprocess.Popen, int, int, str, Path]:
    note, payload = folder / "note", folder / "payload"
    payload.mkdir()
    command = [sys.executable, "-c", textwrap.dedent(OWNER), str(note), str(payload), textwrap.dedent(PROGRAM)]
    owner = subprocess.Popen(command, start_new_session=True)
    until(lambda: note.exists() and len(note.read_text().split()) == 3, "the program did not start")
    program, child, memory = note.read_text().split()
    return owner, int(program), int(child), memory, payload


def assert_nothing_stays(*pids: int, memory: str) -> None:
    until(lambda: not any(psutil.pid_exists(pid) for pid in pids), "a process stays behind")
    until(lambda: not os.path.exists(f"/dev/shm/{memory}"), "shared memory stays behind")


def test_nothing_stays_when_the_owner_is_killed(tmp_path):
    owner, program, child, memory, payload = start_owner(tmp_path)
    waiter = psutil.Process(owner.pid).children()[0]
    owner.kill()
    owner.wait()
    assert_nothing_stays(waiter.pid, program, child, memory=memory)
    until(lambda: not payload.exists(), "the payload stays behind")


def test_nothing_but_the_payload_stays_when_the_program_is_killed(tmp_path):
    owner, program, child, memory, payload = start_owner(tmp_path)
    os.kill(program, signal.SIGKILL)
    assert owner.wait(timeout=60) == 128 + signal.SIGKILL
    assert_nothing_stays(program, child, memory=memory)
    assert payload.exists()


def test_nothing_stays_when_the_waiting_process_is_killed_and_then_the_owner(tmp_path):
    owner, program, child, memory, payload = start_owner(tmp_path)
    psutil.Process(owner.pid).children()[0].kill()  # as Ray does with an actor's children before it ends itself
    owner.wait(timeout=60)
    assert_nothing_stays(program, child, memory=memory)
    until(lambda: not payload.exists(), "the payload stays behind")


def test_no_process_stays_when_the_supervisor_is_killed(tmp_path):
    owner, program, child, _, _ = start_owner(tmp_path)
    psutil.Process(owner.pid).children()[0].children()[0].kill()
    assert owner.wait(timeout=60) != 0
    until(lambda: not psutil.pid_exists(program) and not psutil.pid_exists(child), "a process stays behind")


def test_a_terminated_supervisor_ends_the_program(tmp_path):
    owner, program, child, memory, _ = start_owner(tmp_path)
    psutil.Process(owner.pid).children()[0].terminate()
    owner.wait(timeout=60)
    assert_nothing_stays(program, child, memory=memory)
