"""Runs an agent that is an external program: a command line, which is started with a rollout and ended with it.

    end = await run_command(Command(words=["python", "my_agent.py"], environment=session_environment(session), folder=folder))
    # CommandEnd(exit_code=0, stdout="…", stderr="")

The program is the user's own and is not confined. Its environment is that of the run, without the variables of the run's Python.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vime.surroundings import no_proxy

OUTPUT_CHARACTERS = 100_000
"""Characters of each output that are kept, from its end."""
READ_BYTES = 65_536
OWN_NAMES = frozenset({"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CUDA_VISIBLE_DEVICES", "OLDPWD"})
OWN_PREFIXES = ("RAY_", "VLLM_", "VIME_", "OPENAI_", "ANTHROPIC_", "CLAUDE", "CODEX_")
"""Prefixes of the run's variables, of keys of models that the agent must not call, and of the user's settings of agents."""
MARK = "VIME_AGENT"
"""The variable that marks all processes that a program has started."""
KILL_SECONDS, GONE_SECONDS = 0.01, 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """A program to start. Example: `Command(words=["python", "my_agent.py", "Who owns Halin?"], folder=Path("/tmp/x"))`."""

    words: list[str]
    folder: Path
    """Working folder."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables beside those of the run."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Texts of files that are written first, by path."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandEnd:
    """The end of a program."""

    exit_code: int
    """The exit code; -n if signal n ended the program."""
    stdout: str
    stderr: str


def inherited() -> dict[str, str]:
    """The variables of this process that an agent may have. Calls of its session never take a proxy."""
    found = {key: value for key, value in os.environ.items() if key not in OWN_NAMES and not key.startswith(OWN_PREFIXES)}
    return found | no_proxy()


async def run_command(command: Command) -> CommandEnd:
    """Starts a program without input and waits for its end. When the wait is cancelled, all its processes are killed.

    Raises OSError if it cannot be started.
    """
    for path, text in command.files.items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text)
    mark = uuid.uuid4().hex
    process = await asyncio.create_subprocess_exec(
        *command.words,
        cwd=command.folder,
        # PWD is where a shell's cd would leave it
        env=inherited() | {"PWD": os.path.abspath(command.folder)} | dict(command.environment) | {MARK: mark},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None and process.stderr is not None
    stdout, stderr = bytearray(), bytearray()
    readers = [asyncio.create_task(_read(*pair)) for pair in ((process.stdout, stdout), (process.stderr, stderr))]
    try:
        await _exited(process.pid)
    finally:
        await asyncio.shield(asyncio.to_thread(_kill, mark))
        ends = [*readers, asyncio.create_task(process.wait())]
        await asyncio.wait(ends, timeout=GONE_SECONDS)  # what has cleared its environment may hold the output open
        for end in ends:
            end.cancel()
    code = process.returncode
    exit_code = -signal.SIGKILL if code is None else code
    return CommandEnd(exit_code=exit_code, stdout=stdout.decode(errors="replace"), stderr=stderr.decode(errors="replace"))


async def _exited(process: int) -> None:
    """Waits for a process; asyncio's own wait also waits for its descendants, as long as they hold its output open."""
    try:
        file = os.pidfd_open(process)
    except ProcessLookupError:  # it has ended, and asyncio has seen it
        return
    exited = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(file, exited.set)
    try:
        await exited.wait()
    finally:
        loop.remove_reader(file)
        os.close(file)


async def _read(stream: asyncio.StreamReader, kept: bytearray) -> None:
    """Keeps the end of a program's output."""
    while chunk := await stream.read(READ_BYTES):
        kept += chunk
        del kept[:-OUTPUT_CHARACTERS]


def _kill(mark: str) -> None:
    """Kills every process that has inherited a mark, including those detached from their parents; gives up on unkillable ones."""
    limit = time.monotonic() + GONE_SECONDS
    while (found := _marked(f"{MARK}={mark}".encode())) and time.monotonic() < limit:
        for process in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(KILL_SECONDS)


def _marked(variable: bytes) -> list[int]:
    """Processes with a variable in their environment; one that has ended has none."""
    found: list[int] = []
    for folder in os.scandir("/proc"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if folder.name.isdigit() and variable in Path(folder.path, "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found
