"""Starts the engine and the gateways in front of it, each in a process of its own, and measures these processes."""

import json
import os
import select
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
from bench_rows import ROOT

from gateway_bench.load import Measured, Work
from gateway_bench.script import MODEL, Script

START_SECONDS = 180.0
KEY = "sk-of-a-benchmark"
"""The key of litellm's proxy, which does not start without one."""
Targets = list[dict[str, str]]


class Process:
    """A process, its standard output read by line if it `answers`; everything else that it says goes to a file."""

    def __init__(self, command: list[str], log: Path, *, answers: bool = True, **environment: str) -> None:
        search_path = os.pathsep.join([str(ROOT / "tools"), str(ROOT)])
        self._log = log.open("w")
        self._popen = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if answers else self._log,  # a pipe that nobody reads fills up, and its writer stops
            stderr=self._log,
            text=True,
            env={**os.environ, "PYTHONPATH": search_path, **environment},
        )
        self._process = psutil.Process(self._popen.pid)

    def ask(self, *words: Any) -> Any:
        """Sends a command and returns its answer."""
        assert self._popen.stdin is not None
        self._popen.stdin.write(f"{json.dumps(words)}\n")
        self._popen.stdin.flush()
        return self.read()

    def read(self, seconds: float = START_SECONDS) -> Any:
        """The next line that is JSON. Raises RuntimeError if the process has ended or says nothing."""
        assert self._popen.stdout is not None
        while select.select([self._popen.stdout], [], [], seconds)[0]:
            if not (line := self._popen.stdout.readline()):
                break
            if line[:1] in "{[0123456789":
                return json.loads(line)
        raise RuntimeError(f"{' '.join(map(str, self._popen.args))} gave no answer, see {self._log.name}")  # type: ignore[arg-type]

    def is_alive(self) -> bool:
        """True if it still runs."""
        return self._popen.poll() is None

    def cpu_seconds(self) -> float:
        """CPU time of the process and its children so far."""
        return sum(sum(each.cpu_times()[:2]) for each in self._all())

    def memory_bytes(self) -> int:
        """Resident memory of the process and its children."""
        return sum(each.memory_info().rss for each in self._all())

    def stop(self) -> None:
        """Ends it."""
        for each in self._all():
            each.terminate()
        self._popen.wait(timeout=30)
        self._log.close()

    def _all(self) -> list[psutil.Process]:
        return [self._process, *self._process.children(recursive=True)] if self.is_alive() else []


class EngineProcess(Process):
    """The scripted engine."""

    def __init__(self, script: Script, folder: Path) -> None:
        file = folder / "script.json"
        file.write_text(script.to_json())
        super().__init__([sys.executable, "-m", "gateway_bench.engine", str(file)], folder / "engine.log")
        self.url = f"http://127.0.0.1:{self.read()}"

    def pace(self, seconds: float) -> None:
        """Sets how long a reply takes."""
        _post(f"{self.url}/pace", {"seconds": seconds})

    def log(self) -> list[dict[str, float]]:
        """The requests since the last call of this method."""
        return _post(f"{self.url}/log", {})


class Direct:
    """The engine itself, in the place of a gateway."""

    name = "engine"

    def __init__(self, engine: EngineProcess) -> None:
        self._engine = engine

    def open(self, count: int) -> Targets:
        """Targets without sessions, which the engine does not have."""
        return [{"url": f"{self._engine.url}/v1", "key": "none"}] * count

    def close(self) -> dict[str, float]:
        """Returns no counts, because nothing is kept."""
        return {}

    def cpu_seconds(self) -> float:
        """CPU time so far."""
        return self._engine.cpu_seconds()

    def memory_bytes(self) -> int:
        """Resident memory."""
        return self._engine.memory_bytes()

    def stop(self) -> None:
        """Does nothing, because the engine ends by itself."""


class Sessions(Process):
    """A gateway that obeys `open` and `close`."""

    def __init__(self, name: str, command: list[str], folder: Path) -> None:
        self.name = name
        super().__init__(command, folder / f"{name}.log")
        self.read()

    def open(self, count: int) -> Targets:
        """Opens `count` sessions."""
        return self.ask("open", count)

    def close(self) -> dict[str, float]:
        """Closes the sessions and returns counts of their content."""
        return self.ask("close")


class LiteLLM(Process):
    """litellm's proxy with one model and default settings."""

    name = "litellm"

    def __init__(self, executable: Path, engine_url: str, folder: Path) -> None:
        port = free_port()
        self._url = f"http://127.0.0.1:{port}"
        parameters = {"model": f"hosted_vllm/{MODEL}", "api_base": f"{engine_url}/v1", "api_key": "none"}
        file = folder / "litellm.yaml"
        file.write_text(json.dumps({"model_list": [{"model_name": MODEL, "litellm_params": parameters}]}))
        command = [str(executable), "--config", str(file), "--host", "127.0.0.1", "--port", str(port), "--telemetry", "False"]
        super().__init__(
            command, folder / "litellm.log", answers=False, LITELLM_LOCAL_MODEL_COST_MAP="True", LITELLM_MASTER_KEY=KEY
        )
        wait_for(f"{self._url}/health/liveliness", self)

    def open(self, count: int) -> Targets:
        """Targets without sessions, which litellm does not have."""
        return [{"url": f"{self._url}/v1", "key": KEY}] * count

    def close(self) -> dict[str, float]:
        """Returns no counts, because nothing is kept."""
        return {}


Side = Direct | Sessions | LiteLLM


def free_port() -> int:
    """A port that no program listens on at present."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def run_load(work: Work) -> Measured:
    """Runs agents in a process of their own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tools")}
    command = [sys.executable, "-m", "gateway_bench.load"]
    done = subprocess.run(command, input=json.dumps(asdict(work)), env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    return Measured(**json.loads(done.stdout))


def _post(url: str, body: Mapping[str, Any]) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"}, method="POST")
    with urllib.request.urlopen(request, timeout=60) as response:
        data = response.read()
    return json.loads(data) if data else None


def wait_for(url: str, process: Process) -> None:
    """Waits until it answers. Raises RuntimeError if its process ends before, or takes too long."""
    deadline = time.monotonic() + START_SECONDS
    while process.is_alive() and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    raise RuntimeError(f"{url} does not answer")
