"""A host makes the runs of its clients in one process, in their terminals and with their exit codes."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from vime.warm import hosted_run
from vime.warm.hosted_run import OwnHost, run_on_new_host, run_on_waiting_host

PROGRAM = """
import signal
import sys
from vime.warm import hosted_run
signal.signal(signal.SIGINT, signal.default_int_handler)
hosted_run.COMMAND = [sys.executable, "-m", "vime.warm.host", "--run", "tests.warm.made_runs.run"]
host = hosted_run.OwnHost()
try:
    print("ended with", host.run(["wait"]), flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
finally:
    host.close()
"""


@pytest.fixture(autouse=True)
def made_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts of these tests start no real run."""
    command = [sys.executable, "-m", "vime.warm.host", "--run", "tests.warm.made_runs.run"]
    monkeypatch.setattr(hosted_run, "COMMAND", command)


@pytest.fixture
def host() -> Iterator[OwnHost]:
    """The host of a sweep."""
    host = OwnHost()
    yield host
    host.close()


def told(capfd: pytest.CaptureFixture[str]) -> tuple[list[int], list[str]]:
    """Numbers of the processes that made runs, and the words of these runs."""
    found = re.findall(r"run \d+ in (\d+): (.*)", capfd.readouterr().out)
    return [int(pid) for pid, _ in found], [words for _, words in found]


def test_runs_of_a_sweep_share_a_process_also_after_one_that_failed(host: OwnHost, capfd: pytest.CaptureFixture[str]):
    assert [host.run([word, "seed=1"]) for word in ("good", "fail", "raise", "exit", "good")] == [0, 1, 1, 5, 0]
    pids, words = told(capfd)
    assert words == ["good seed=1", "fail seed=1", "raise seed=1", "exit seed=1", "good seed=1"]
    assert len(set(pids)) == 1 and pids[0] != os.getpid()


def test_after_a_run_that_kills_its_process_another_makes_the_next(host: OwnHost, capfd: pytest.CaptureFixture[str]):
    assert [host.run([word]) for word in ("good", "die", "good")] == [0, 1, 0]
    first, died, last = told(capfd)[0]
    assert first == died != last


def test_a_changed_variable_gets_a_new_process(host: OwnHost, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    variables = [{"PATH": "/bin"}, {"PATH": "/bin"}, {"PATH": "/usr/bin"}]
    monkeypatch.setattr(hosted_run.psutil.Process, "environ", lambda _: variables[0])
    for _ in range(3):
        assert host.run(["good"]) == 0
        variables.pop(0)
    pids, _ = told(capfd)
    assert pids[0] == pids[1] != pids[2]


def test_an_interruption_reaches_the_run_and_then_the_sweep():
    sweep = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True, cwd=Path.cwd())
    assert sweep.stdout is not None
    lines = [sweep.stdout.readline() for _ in range(2)]
    sweep.send_signal(signal.SIGINT)
    rest = sweep.stdout.read()
    assert sweep.wait() == 0 and lines[1] == "waiting\n" and rest == "interrupted\n"


def test_a_client_that_is_killed_takes_its_host_with_it():
    sweep = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True, cwd=Path.cwd())
    assert sweep.stdout is not None
    pid = int(re.findall(r"in (\d+)", sweep.stdout.readline())[0])
    assert sweep.stdout.readline() == "waiting\n"
    sweep.kill()
    sweep.wait()
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not Path(f"/proc/{pid}").exists()


def test_a_waiting_host_makes_the_next_run_from_its_folder_until_it_is_ended(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    monkeypatch.chdir(tmp_path)
    assert run_on_waiting_host(["good"]) is None
    assert run_on_new_host(["good"], seconds=60.0, started=time.time()) == 0
    assert run_on_waiting_host(["fail"]) == 1
    with hosted_run._taken(hosted_run._socket_path()) as path:  # as another client does while its run goes on
        assert path is not None and run_on_waiting_host(["good"]) is None
    assert run_on_waiting_host(["good", "cluster.keep_warm=0"]) is None
    pids, words = told(capfd)
    assert words == ["good", "fail"] and len(set(pids)) == 1
    with socket.socket(socket.AF_UNIX) as connection:
        assert not hosted_run._connects(connection, hosted_run._socket_path())
