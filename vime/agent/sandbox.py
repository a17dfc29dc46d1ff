"""Runs untrusted Python programs, each in a bubblewrap sandbox of its own, with limits.

    sandbox = Sandbox(config.sandbox)
    result = await sandbox.run("print(6 * 7)")        # SandboxResult(stdout="42\\n", reason="finished", …)

A sandbox has no network, no environment, no files except the interpreter's and a small /tmp, and cannot see other processes.
`SandboxConfig` limits its memory, time, processes and output.
"""

import asyncio
import logging
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from vime.agent.bounded_program import BoundedProgram
from vime.agent.bubblewrap import (
    ENVIRONMENT,
    INTERPRETER,
    PACKAGES,
    PROGRAM,
    Files,
    interpreter,
    package_folders,
    sandbox_command,
)
from vime.agent.memory_file import sealed_file
from vime.agent.system_calls import filter_program, machine_is_known
from vime.config import SandboxConfig
from vime.errors import SandboxError
from vime.machine import num_cores

logger = logging.getLogger(__name__)

_LAUNCHER = Path(__file__).with_name("launcher.py")
REASONS = ("finished", "raised", "time_limit", "memory_limit", "process_limit", "output_limit", "file_limit", "killed")
"""Reasons why a program ended: by itself (see `exit_code`), by an uncaught exception, at a limit, or by a signal."""
_EXCEPTIONS = {240: "raised", 241: "memory_limit", 242: "process_limit", 243: "file_limit"}
"""Reasons by the launcher's exit status; a program that exits with one of them itself gets the same reason."""
NUM_PLACES = max(2, num_cores())
"""Programs that run at the same time, one per core; the time limit of the others begins when they start."""
_threads = ThreadPoolExecutor(max_workers=NUM_PLACES, thread_name_prefix="sandbox")
_places: dict[asyncio.AbstractEventLoop, asyncio.Semaphore] = {}
_has_place: ContextVar[bool] = ContextVar("has_place", default=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class SandboxResult:
    """The output and the end of a program.

    Example: `SandboxResult(stdout="", stderr="… ZeroDivisionError: …", exit_code=1, reason="raised", seconds=0.04)`; an exit
    code of 128 + n means signal n.
    """

    stdout: str
    stderr: str
    exit_code: int
    reason: str
    seconds: float

    def text(self) -> str:
        """The output in the form shown to an agent, followed by reason, exit code and stderr unless the program succeeded."""
        output = self.stdout.strip()
        if self.reason == "finished" and self.exit_code == 0:
            return output or "(the program printed nothing)"
        return f"{output}\n[{self.reason}, exit code {self.exit_code}] {self.stderr.strip()}".strip()


class Sandbox:
    """Runs programs, each in a new sandbox.

    Raises SandboxError if no sandbox can run here, unless `config.allow_unsandboxed`.
    """

    def __init__(self, config: SandboxConfig) -> None:
        self._config = config
        problem = sandbox_problem()
        if problem and not config.allow_unsandboxed:
            raise SandboxError(problem)
        if problem:
            logger.warning("programs run without a sandbox because of sandbox.allow_unsandboxed=true: %s", problem)
        self._sandboxed = problem is None

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Waits until a program may run; a `run` within this context starts at once."""
        if _has_place.get():
            yield
            return
        async with _places_of_this_loop():
            _has_place.set(True)
            try:
                yield
            finally:
                _has_place.set(False)

    async def run(self, code: str, *, stdin: str = "") -> SandboxResult:
        """Runs a Python program and returns its result, even if the program fails.

        Raises SandboxError if the sandbox does not start. If the call is cancelled, the program is ended.
        """
        async with self.place():
            program = BoundedProgram(self._config, sandboxed=self._sandboxed)
            loop = asyncio.get_running_loop()
            work = loop.run_in_executor(_threads, _run, self._config, program, code, stdin, self._sandboxed)
            try:
                return await asyncio.shield(work)
            except asyncio.CancelledError:
                program.kill()
                work.add_done_callback(lambda done: done.cancelled() or done.exception())
                raise


@lru_cache(maxsize=1)
def sandbox_problem() -> str | None:
    """The reason why no sandbox can run here, with the remedy, or None if one can; it is tried once per process."""
    remedy = "or set sandbox.allow_unsandboxed=true to run programs with your own rights"
    if sys.platform != "linux" or not machine_is_known():
        return f"sandboxes need Linux on x86_64 or aarch64: run this there, {remedy}"
    if shutil.which("bwrap") is None:
        return f"bubblewrap is missing: install it (apt-get install bubblewrap), {remedy}"
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        return f"setpriv is missing: install it (apt-get install util-linux), {remedy}"
    config = SandboxConfig(num_processes=4, packages=[])
    try:
        result = _run(config, BoundedProgram(config, sandboxed=True), _TRIAL, "", True)
    except SandboxError as error:
        return f"bubblewrap cannot start a sandbox ({error}): allow user namespaces (in a container: run it privileged), {remedy}"
    if (result.reason, result.stdout) == ("finished", "3\n"):
        return None
    trial = f"{result.reason}, {result.stdout.strip()!r}, {result.stderr.strip()[-200:]!r}"
    return f"a trial sandbox does not hold its limit of 4 processes ({trial}): use Linux 5.14 or later, {remedy}"


_TRIAL = """
import os, time
children = []
try:
    while len(children) < 50:
        child = os.fork()
        if child == 0:
            time.sleep(10)
            os._exit(0)
        children.append(child)
except OSError:
    pass
print(len(children))
"""
"""Starts processes until the limit stops it; the program itself counts as one of four."""


def _places_of_this_loop() -> asyncio.Semaphore:
    """The places of the running event loop, which all its sandboxes share."""
    for loop in list(_places):
        if loop.is_closed():
            _places.pop(loop, None)
    return _places.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(NUM_PLACES))


def _run(config: SandboxConfig, program: BoundedProgram, code: str, stdin: str, sandboxed: bool) -> SandboxResult:
    """Runs the program and blocks until it has ended."""
    with ExitStack() as stack:
        written_inside = stack.enter_context(ExitStack())
        report, report_end = _pipe(stack, written_inside)
        status, status_end = _pipe(stack, written_inside)
        go_end, go = _pipe(stack, stack)
        source, given = _file(stack, code), _file(stack, stdin)
        handed = [report_end, go_end, status_end, source]
        if sandboxed:
            calls = _file(stack, filter_program())
            files = Files(program=source, system_calls=calls, status=status_end)
            folders = [PACKAGES] if package_folders(config.packages) else []
            # the first process of the sandbox, which waits for the others, counts as well
            inside = _inside(config, (report_end, go_end), config.num_processes + 1, PROGRAM, folders)
            command = sandbox_command(files, packages=config.packages, file_bytes=config.file_bytes, inside=inside)
            handed, folder = [*handed, calls], "/"
        else:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            path = Path(folder) / "program.py"
            path.write_text(code, encoding="utf-8", errors="replace")
            parents = {str(package.parent) for package in package_folders(config.packages).values()}
            command = _inside(config, (report_end, go_end), 0, str(path), sorted(parents))

        def start() -> "subprocess.Popen[bytes]":
            process = subprocess.Popen(
                command,
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=handed,
                cwd=folder,
                env=ENVIRONMENT,
                start_new_session=True,
            )
            written_inside.close()
            return process

        started = time.monotonic()
        exit_code = program.run(start, notes={"report": report, "status": status}, go=go)
        return _result_of(config, program, exit_code, time.monotonic() - started)


def _inside(config: SandboxConfig, ends: tuple[int, int], num_processes: int, path: str, folders: list[str]) -> list[str]:
    limits = (
        *ends,
        config.memory_bytes,
        math.ceil(config.cpu_seconds),
        num_processes,
        config.file_bytes,
        config.output_characters,
    )
    return [interpreter(), *INTERPRETER, _LAUNCHER.read_text(), *map(str, limits), path, *folders]


def _pipe(reads: ExitStack, writes: ExitStack) -> tuple[int, int]:
    """Opens a pipe and returns its read and write end, each closed with its stack."""
    read, write = os.pipe()
    reads.callback(os.close, read)
    writes.callback(os.close, write)
    return read, write


def _file(stack: ExitStack, content: str | bytes) -> int:
    """Opens a file in memory with this content that cannot be changed."""
    file = sealed_file(content)
    stack.callback(os.close, file)
    return file


def _result_of(config: SandboxConfig, program: BoundedProgram, exit_code: int, seconds: float) -> SandboxResult:
    """The result of a program that has ended. Raises SandboxError if it never began."""
    stderr = program.read["stderr"].decode(errors="replace")[-config.output_characters :]
    exit_code = 128 - exit_code if exit_code < 0 else exit_code
    if program.stopped:
        reason, exit_code = program.stopped, 128 + signal.SIGKILL
    elif not program.read["report"]:
        raise SandboxError(f"the sandbox did not start: {stderr.strip()[-500:] or f'exit status {exit_code}'}")
    elif exit_code in _EXCEPTIONS:
        reason, exit_code = _EXCEPTIONS[exit_code], 1
    else:
        reason = _reason(exit_code, used_up=program.may_have_computed(config.cpu_seconds))
    stdout = program.read["stdout"].decode(errors="replace")[: config.output_characters]
    return SandboxResult(stdout=stdout, stderr=stderr, exit_code=exit_code, reason=reason, seconds=seconds)


def _reason(exit_code: int, *, used_up: bool) -> str:
    """The reason by the exit code; a signal of the CPU limit counts as such only if the CPU time may have been `used_up`."""
    if used_up and exit_code in (128 + signal.SIGXCPU, 128 + signal.SIGKILL):
        return "time_limit"
    if exit_code == 128 + signal.SIGXFSZ:
        return "file_limit"
    return "killed" if exit_code > 128 else "finished"
