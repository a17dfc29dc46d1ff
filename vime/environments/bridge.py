"""An environment in a Python of its own, for packages that contradict vime's: its process runs beside each rollout worker.

    +method=environment method.environment=bridge 'method.settings={python: envs/mine/bin/python, adapter: mine.py:Sums}'

The other side is `foreign/side.py`, which says what an adapter is; those of verifiers and inspect are beside it. A process starts
with the first call, ends with the worker that started it, however that ends, and is started again after it has died or does not
answer; the episodes that it had are run again. An episode that is no longer needed is cancelled there.
"""

import asyncio
import atexit
import contextlib
import json
import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vime.agent.command import OWN_NAMES, OWN_PREFIXES
from vime.data.split import Split
from vime.environments.environment import MissingPackageError, NoPlaceError, Row, Seat, in_split
from vime.errors import ConfigError, Problem, SandboxError, describe
from vime.files.provenance import is_secret
from vime.surroundings import short_folder

logger = logging.getLogger(__name__)

FOREIGN = Path(__file__).with_name("foreign")
MOST_BYTES = 2**28
"""Longest line of an answer."""
ANSWER_SECONDS = 60.0
"""Time in which a process must take a call; one that does not is ended."""
POLL_SECONDS = 0.05
SHOWN_CHARACTERS = 2_000
"""Characters of its output that an error about a process shows, from its end."""


class Bridge:
    """The environment of an adapter in another Python, as a `Harness`.

    Example: `Bridge(python="~/envs/mine/bin/python", adapter="mine.py:Sums", settings={"level": 2})`.
    """

    def __init__(
        self,
        *,
        python: str,
        adapter: str,
        settings: Mapping[str, Any] | None = None,
        num_processes: int = 1,
        splits: bool = True,
        variables: list[str] | None = None,
        start_seconds: float = 300.0,
    ) -> None:
        """`adapter` is `PATH.py:CLASS` or `MODULE:CLASS`, made with the settings.

        `num_processes` run beside each rollout worker. Without `splits` both splits have all rows, for an evaluation alone.
        `variables` names those of this environment that the process gets although they look like the run's own or secrets
        (`OPENAI_API_KEY`, `HF_TOKEN`). Raises ConfigError for an adapter that is not there, and MissingPackageError for a Python.
        """
        found = shutil.which(os.path.expanduser(python))
        if found is None:
            remedy = "is no program here: give the path of the environment's Python, PATH/bin/python"
            raise MissingPackageError([Problem(key="method.settings.python", value=python, remedy=remedy)])
        path, _, name = adapter.rpartition(":")
        if not path or not name.isidentifier():
            remedy = "is no adapter: use PATH.py:CLASS or MODULE:CLASS"
            raise ConfigError([Problem(key="method.settings.adapter", value=adapter, remedy=remedy)])
        if path.endswith(".py"):
            if not Path(path).expanduser().is_file():
                remedy = f"there is no file {path}"
                raise ConfigError([Problem(key="method.settings.adapter", value=adapter, remedy=remedy)])
            adapter = f"{Path(path).expanduser().resolve()}:{name}"
        found, kept = os.path.abspath(found), set(variables or ())
        own = [each for each in os.environ if each in OWN_NAMES or each.startswith((*OWN_PREFIXES, "PYTHON")) or is_secret(each)]
        removed = [each for each in own if each not in kept]
        command = [
            "env",
            *(f"--unset={each}" for each in removed),
            f"PATH={Path(found).parent}:{os.environ.get('PATH', '')}",
            found,
        ]
        self._command = [*command, str(FOREIGN / "side.py")]
        self._arguments = [adapter, json.dumps(dict(settings or {}))]
        self._splits = splits
        self._seats: tuple[str, ...] | None = None
        self._processes = [_Process(self._command, self._arguments, start_seconds) for _ in range(num_processes)]
        atexit.register(self.close)

    @property
    def seats(self) -> tuple[str, ...]:
        """The names of the seats, for which a process is started. Raises SandboxError with its output if it does not start."""
        if self._seats is None:
            self._seats = tuple(self._processes[0].started()["seats"])
        return self._seats

    def rows(self, *, split: Split, num_items: int, seed: int) -> Iterable[Row]:
        """The rows of one split, in the order of the adapter's."""
        candidates = self._processes[0].rows(seed)
        with contextlib.closing(candidates):
            if self._splits:
                return in_split(candidates, split=split, num_items=num_items)
            return [row for row, _ in zip(candidates, range(num_items))]

    async def run(self, row: Row, seats: Mapping[str, Seat]) -> Any:
        """An episode in the least busy process.

        Raises NoPlaceError while it starts or all have as many as they take, SandboxError if it is lost, and RuntimeError with
        the words of what the adapter raised.
        """
        errors = [error for process in self._processes if (error := process.start()) is not None]
        free = [process for process in self._processes if process.has_place]
        if free:
            process = min(free, key=lambda each: each.num_open)
            return await process.run(row, {name: asdict(seat) for name, seat in seats.items()})
        if errors:
            raise errors[0]
        raise NoPlaceError(f"each of {len(self._processes)} processes starts or has as many episodes as it takes")

    def close(self) -> None:
        """Ends all processes."""
        for process in self._processes:
            process.end()


def verifiers(taskset: str, *, python: str, **settings: Any) -> Bridge:
    """A taskset of verifiers (`verifiers.v1`), installed in `python`.

    `settings` are those of `foreign/verifiers_tasks.py`, and `num_processes`, `splits` and `variables` of a bridge.
    """
    return _adapted("verifiers_tasks.py:Verifiers", python, {"taskset": taskset, **settings})


def inspect_ai(*, python: str, task: str, num_processes: int = 2, **settings: Any) -> Bridge:
    """A task of inspect, `FILE.py@NAME` or `MODULE@NAME`; each process runs one sample at a time, as inspect wants it.

    `settings` are those of `foreign/inspect_tasks.py`, and `splits` and `variables` of a bridge.
    """
    path, at, name = task.partition("@")
    if not name:
        remedy = "names no task: use FILE.py@NAME or MODULE@NAME"
        raise ConfigError([Problem(key="method.settings.task", value=task, remedy=remedy)])
    own = {"task": f"{Path(path).expanduser().resolve()}{at}{name}" if path.endswith(".py") else task, **settings}
    return _adapted("inspect_tasks.py:InspectTask", python, {"num_processes": num_processes, **own})


def miniwob(task: str, *, python: str, **settings: Any) -> Bridge:
    """A page of MiniWoB in a browser.

    `settings` are those of `foreign/miniwob_pages.py`, and `num_processes`, `splits` and `variables` of a bridge.
    """
    return _adapted("miniwob_pages.py:Pages", python, {"task": task, **settings})


def _adapted(adapter: str, python: str, settings: Mapping[str, Any]) -> Bridge:
    """The bridge of an adapter that is shipped."""
    of_bridge = {name: settings[name] for name in ("num_processes", "splits", "variables") if name in settings}
    own = {name: value for name, value in settings.items() if name not in of_bridge}
    return Bridge(python=python, adapter=str(FOREIGN / adapter), settings=own, **of_bridge)


class _Process:
    """One process in the other Python, which is started when it is needed and was lost."""

    def __init__(self, command: list[str], arguments: list[str], start_seconds: float) -> None:
        self._command, self._arguments, self._start_seconds = command, arguments, start_seconds
        self._lock = threading.Lock()
        self._starting: threading.Thread | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = Path()
        self._about: dict[str, Any] = {}
        self._error: SandboxError | None = None
        self.num_open = 0

    @property
    def is_ready(self) -> bool:
        """True if it runs and takes calls."""
        return self._process is not None and self._process.poll() is None and bool(self._about)

    @property
    def at_once(self) -> int | None:
        """Most episodes at a time; None for any number."""
        return self._about.get("at_once")

    @property
    def has_place(self) -> bool:
        """True if it takes another episode now."""
        return self.is_ready and (self.at_once is None or self.num_open < self.at_once)

    def start(self) -> SandboxError | None:
        """Begins to start it in a thread, unless it runs or starts. Returns, once, the error of a start that has failed."""
        error, self._error = self._error, None
        if error is None and not self.is_ready and (self._starting is None or not self._starting.is_alive()):
            self._starting = threading.Thread(target=self._try, daemon=True, name="bridge")
            self._starting.start()
        return error

    def _try(self) -> None:
        try:
            self.started()
        except SandboxError as error:
            self._error = error
        except OSError as error:
            self._error = SandboxError(f"the environment's process did not start: {describe(error)}")
        if self._error is not None:  # other processes may take the episodes, so that no rollout says it
            logger.warning("%s", self._error)

    def started(self) -> dict[str, Any]:
        """Its seats and its places, once it runs. Raises SandboxError with its last words if it does not start."""
        with self._lock:
            if self.is_ready:
                return self._about
            self.end()
            self._folder = Path(tempfile.mkdtemp(prefix="vime-bridge-", dir=short_folder()))
            launch = [sys.executable, "-m", "vime.processes.launch", f"--owner={os.getpid()}", f"--remove={self._folder}", "--"]
            words = [*launch, *self._command, str(self._socket), *self._arguments]
            with open(self._log, "wb") as log:
                process = self._process = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
                )
            deadline = time.monotonic() + self._start_seconds
            while time.monotonic() < deadline and process.poll() is None:
                with contextlib.suppress(OSError, ValueError), self._connected() as answers:  # also where it ends at once
                    self._about = json.loads(answers.readline())
                    return self._about
                time.sleep(POLL_SECONDS)
            why = "ended" if process.poll() is not None else f"did not start within {self._start_seconds:g} s"
            said = self._said()
            self.end()
            raise SandboxError(f"the environment's process {why}: {said}")

    def rows(self, seed: int) -> Generator[Row]:
        """The rows of the adapter. Raises SandboxError if it is lost meanwhile, and ConfigError for what the adapter raised."""
        self.started()
        with self._connected() as answers:
            answers.readline()
            answers.write(json.dumps({"call": "rows", "seed": seed}).encode() + b"\n")
            answers.flush()
            while line := answers.readline():
                said = json.loads(line)
                if "error" in said:
                    logger.error("rows of the environment raised\n%s", said["traceback"])
                    remedy = f"rows of the environment raised {said['error']}"
                    raise ConfigError([Problem(key="method.settings", value=self._arguments, remedy=remedy)])
                if "end" in said:
                    return
                yield said["row"]
        raise SandboxError(f"the environment's process was lost: {self._said()}")

    async def run(self, row: Row, seats: Mapping[str, Any]) -> Any:
        """The result of an episode. Raises SandboxError if the process is lost, RuntimeError for what the adapter raised."""
        process, writer = self._process, None
        self.num_open += 1
        try:
            try:
                reader, writer = await asyncio.open_unix_connection(str(self._socket), limit=MOST_BYTES)
                await asyncio.wait_for(reader.readline(), ANSWER_SECONDS)
            except BlockingIOError as error:
                raise NoPlaceError("more episodes wait for the environment's process than it can hold") from error
            except (OSError, TimeoutError) as error:
                self._give_up(process)
                raise NoPlaceError(f"the environment's process does not answer ({describe(error)}) and starts again") from error
            writer.write(json.dumps({"call": "run", "row": row, "seats": seats}, default=str).encode() + b"\n")
            answer = await reader.readline()
        except asyncio.CancelledError:
            if self.at_once == 1:  # nothing else is lost with it, and whatever it hangs in ends
                self._give_up(process)
            raise
        except (OSError, ValueError) as error:
            raise SandboxError(f"the environment's process: {describe(error)}") from error
        finally:
            self.num_open -= 1
            if writer is not None:
                writer.close()
        if not answer.endswith(b"\n"):
            raise SandboxError(f"the environment's process was lost in an episode: {self._said()}")
        said = json.loads(answer)
        if "error" in said:
            logger.warning("an episode of the environment raised\n%s", said["traceback"])
            raise RuntimeError(said["error"])
        return said["outcome"]

    def _give_up(self, process: Any) -> None:
        """Ends a process, unless another one has taken its place."""
        if process is self._process:
            self.end()

    def end(self) -> None:
        """Ends it with all that it has started."""
        process, self._process, self._about = self._process, None, {}
        if process is not None:
            process.terminate()
            threading.Thread(target=process.wait, daemon=True).start()
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _socket(self) -> Path:
        return self._folder / "socket"

    @property
    def _log(self) -> Path:
        return self._folder / "output"

    @contextlib.contextmanager
    def _connected(self) -> Iterator[Any]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as opened:
            opened.settimeout(self._start_seconds)
            opened.connect(str(self._socket))
            with opened.makefile("rwb") as answers:
                yield answers

    def _said(self) -> str:
        """The end of its output."""
        try:
            return self._log.read_text(errors="replace")[-SHOWN_CHARACTERS:].strip() or "it printed nothing"
        except OSError:
            return "its output is gone"
