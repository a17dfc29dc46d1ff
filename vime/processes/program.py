"""A program that the run launches: what it is (`ProgramSpec`), and the process that was launched last (`ProgramProcess`)."""

import asyncio
import contextlib
import logging
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

import psutil

from vime.cluster.ports import free_port
from vime.config import ServingConfig
from vime.machine import memory_bytes, num_killed_for_memory
from vime.processes.secret import VARIABLE
from vime.surroundings import no_proxy

logger = logging.getLogger(__name__)

PORT = "{port}"
"""Placeholder in a command for the program's port, which may change with a restart."""
FREE_PORT = "{free port}"
"""Placeholder in a command or an environment for a free port, chosen anew at each launch."""
LISTEN = "{listen}"
"""Placeholder in a command for the address that the program binds."""
LOG_TAIL_BYTES = 4000
END_SECONDS = 30.0
"""Time limit for a supervisor to end its program; after it (a supervisor may be stopped) its whole tree is killed."""
PORT_SECONDS = 10.0
"""Longest wait for a port that the program's last process may still hold."""
POLL_SECONDS = 0.1
SAID_BYTES = 2**20
_KILLED_ENGINE = re.compile(r"Failed core proc\(s\): \{[^}]*: -9\b|engine core exited unexpectedly")
_FAILED_ENGINE = "encountered a fatal error"
"""Messages of vLLM about an engine that was killed, and about one that has ended itself, for which both are logged."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramSpec:
    """The command of a program, its address, and how it is kept alive.

    Example: `ProgramSpec(name="actor-0", address="10.0.0.7", port=8001, command=["python", "-m", …, "--port", PORT],
    log="…/logs/actor-0.log")`.
    """

    name: str
    address: str
    """Host by which other machines reach the program."""
    port: int
    command: list[str]
    log: str
    listen: str = "127.0.0.1"
    """Address that the program binds."""
    environment: dict[str, str | None] = field(default_factory=dict)
    """Variables added to the actor's environment; None removes one."""
    secret: str | None = field(default=None, repr=False)
    """The secret without which the program answers only its health check (`vime.processes.secret`)."""
    remove: list[str] = field(default_factory=list)
    """Folders to remove when the run is gone (weight payloads in shared memory)."""
    driver_pid: int | None = None
    """The run's driver, if it is on this machine: the run is gone when this process is."""
    health_path: str = "/health"
    hub_id: str | None = None
    """The checkpoint that the program may have to download when it starts."""
    settings: ServingConfig = field(default_factory=ServingConfig)
    """Time limits, health checks and restarts."""

    @property
    def url(self) -> str:
        """The address at which the program answers."""
        return f"http://{self.address}:{self.port}"


class ProgramProcess:
    """The process of a program, under a supervisor that ends its whole tree (`vime.processes.launch`)."""

    def __init__(self, spec: ProgramSpec) -> None:
        self.spec = spec
        self.launch_id = 0
        """An id that differs for every launch, including launches by an object that takes the place of this one."""
        self._process: subprocess.Popen[bytes] | None = None
        self._killed_before = self._log_bytes = 0
        """Processes that the kernel had killed for want of memory, and the log's size, when this one was launched."""

    async def take_port(self) -> bool:
        """Waits for the port, and chooses another if it does not come free; returns whether it chose another."""
        deadline = time.monotonic() + PORT_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                free_port(self.spec.listen, self.spec.port)
                return False
            await asyncio.sleep(POLL_SECONDS)
        self.spec = replace(self.spec, port=free_port(self.spec.listen, 0))
        return True

    def launch(self) -> None:
        """Starts the program; its output is appended to the log."""
        self.launch_id = time.time_ns()
        self._killed_before = num_killed_for_memory()
        spec = self.spec
        arguments = [f"--owner={os.getpid()}", *(f"--remove={folder}" for folder in spec.remove)]
        if spec.driver_pid is not None:
            arguments.append(f"--driver={spec.driver_pid}")
        program = [self._filled(word) for word in spec.command]
        kept = {key: value for key, value in os.environ.items() if key not in spec.environment}
        own = {key: self._filled(value) for key, value in spec.environment.items() if value is not None}
        own |= no_proxy(spec.address, spec.listen)
        if spec.secret is not None:
            own[VARIABLE] = spec.secret
        with _open_log(spec.log) as log:
            self._log_bytes = log.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "vime.processes.launch", *arguments, "--", *program],
                env={**kept, **own},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def share_log(self, path: str) -> None:
        """Gives the log a second name, in the folder of another run; where that cannot be done, a line there says where it is."""
        earlier = self.spec.log
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).hardlink_to(earlier)
            self.spec = replace(self.spec, log=path)
        except OSError:  # another file system, or there is such a log
            with contextlib.suppress(OSError), Path(path).open("a") as log:
                log.write(f"the log of this program goes on in {earlier}\n")

    def pid(self) -> int | None:
        """Id of the launched process: the supervisor's parent, the program's grandparent."""
        return self._process.pid if self._process is not None else None

    def exit_code(self) -> int | None:
        """The exit code of the process; None while it runs, or before the first launch."""
        return self._process.poll() if self._process is not None else None

    def ending(self) -> str:
        """The exit code; if signal 9 ended the program or a part of it, with the likely cause."""
        return f"exit code {self.exit_code()}{self.want_of_memory()}"

    def want_of_memory(self) -> str:
        """The words to add if the kernel has ended the program, or probably a part of it, because memory ran out; else none."""
        ran_out = num_killed_for_memory() > self._killed_before
        if not ran_out and self.exit_code() != 128 + signal.SIGKILL and not _lost_its_engine(self._said()):
            return ""
        cause = (
            "the kernel ended a process meanwhile because"
            if ran_out
            else "a process of it was killed by signal 9, probably because"
        )
        return f": {cause} memory ran out, of which {memory_bytes() / 2**30:.1f} GiB are ours: give more, or take less"

    def _said(self) -> str:
        """The end of the program's log since its launch."""
        with contextlib.suppress(OSError), Path(self.spec.log).open("rb") as log:
            log.seek(max(self._log_bytes, os.path.getsize(self.spec.log) - SAID_BYTES))
            return log.read(SAID_BYTES).decode(errors="replace")
        return ""

    async def kill(self) -> None:
        """Has the supervisor end the tree, and ends both if it does not; returns when they are gone."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + END_SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            await asyncio.sleep(POLL_SECONDS)
        if process.poll() is None:
            await asyncio.to_thread(_kill_all, process.pid, self.spec.name)

    def log_tail(self) -> str:
        """The last lines of the log, with its name."""
        try:
            with Path(self.spec.log).open("rb") as log:
                log.seek(max(0, os.path.getsize(self.spec.log) - LOG_TAIL_BYTES))
                return f"end of {self.spec.log}:\n{log.read(LOG_TAIL_BYTES).decode(errors='replace')}"
        except OSError as error:
            return f"there is no log {self.spec.log} ({error})"

    def _filled(self, word: str) -> str:
        if word in (PORT, LISTEN):
            return str(self.spec.port) if word == PORT else self.spec.listen
        return str(free_port(self.spec.listen, 0)) if word == FREE_PORT else word


def _lost_its_engine(said: str) -> bool:
    return bool(_KILLED_ENGINE.search(said)) and _FAILED_ENGINE not in said


def _open_log(path: str) -> IO[bytes]:
    """Opens the log, or /dev/null if it cannot be written."""
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        return Path(path).open("ab")
    except OSError as error:
        logger.warning("%s cannot be written (%s): the program runs without a log", path, error)
        return Path(os.devnull).open("ab")


def _kill_all(pid: int, name: str) -> None:
    """Kills a process and all below it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        launched = psutil.Process(pid)
        tree = [launched, *launched.children(recursive=True)]
        for process in tree:
            with contextlib.suppress(psutil.NoSuchProcess):  # it ended meanwhile
                process.kill()
        _, alive = psutil.wait_procs(tree, timeout=END_SECONDS)
        if alive:
            logger.warning("%s: %s cannot be killed", name, ", ".join(str(process.pid) for process in alive))
