"""One command of a workspace, from its start to its end, which may be a limit."""

import asyncio
import errno
import os
import signal
from dataclasses import dataclass

from vime.agent.memory_file import sealed_file
from vime.agent.workspace.channel import Channel
from vime.agent.workspace.command_output import CommandOutput
from vime.agent.workspace.control_group import ControlGroup
from vime.agent.workspace.results import CommandResult
from vime.agent.workspace.usage import used_by
from vime.config import WorkspaceConfig
from vime.errors import SandboxError

LOOK_SECONDS = 0.1
"""Interval at which the processes are measured where the kernel does not bound them."""
GONE_SECONDS = 30.0
NOT_STARTED = 126
"""The exit code of a command for which there was no process."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Started:
    """A program that is started, and its bounds. Example: `Started(words=["git", "status"], folder="/testbed", …)`."""

    words: list[str]
    folder: str
    environment: dict[str, str]
    stdin: bytes
    seconds: float
    keep_bytes: int
    """Bytes that are kept of each stream."""
    most_bytes: int
    """Written to one stream before the command is ended."""
    mode: str
    """`ends`, `keeps` or `inner`, as `inside/first_process.py` has them."""


class RunningCommand:
    """A command in a workspace; `run` it once."""

    def __init__(self, started: Started, *, channel: Channel, group: ControlGroup, config: WorkspaceConfig) -> None:
        self._started, self._channel, self._group, self._config = started, channel, group, config
        self._loop = asyncio.get_running_loop()
        self._stopped: asyncio.Future[str] = self._loop.create_future()
        self._reached = False
        self.stdout, self.stderr = (
            CommandOutput(
                keep_bytes=started.keep_bytes, most_bytes=started.most_bytes, too_long=lambda: self._stop("output_limit")
            )
            for _ in range(2)
        )

    async def run(self) -> CommandResult:
        """Starts the command and waits for its end, or ends it at a limit or when cancelled."""
        before = (self._group.num_out_of_memory(), self._group.num_refused_processes())
        began = self._loop.time()
        key, reply = await self._start()
        watch = self._loop.create_task(self._watch())
        try:
            await asyncio.wait({reply, self._stopped}, timeout=self._started.seconds, return_when=asyncio.FIRST_COMPLETED)
            if not reply.done():
                self._stop("time_limit")
        finally:
            watch.cancel()
            if not reply.done():
                await self._end(key, reply)
            self._channel.forget(key)
            self.stdout.drain()
            self.stderr.drain()
        try:
            answer = reply.result()
        except OSError as error:  # the workspace has room for no further process
            return self._refused(error, self._loop.time() - began)
        status, is_full, num_left = int(answer.fields[0]), answer.fields[1] == b"full", int(answer.fields[2])
        self._reached |= num_left + 1 >= self._config.num_processes
        after = (self._group.num_out_of_memory(), self._group.num_refused_processes())
        grew = (after[0] > before[0], after[1] > before[1] or self._reached)
        exit_code = os.waitstatus_to_exitcode(status)
        exit_code = 128 - exit_code if exit_code < 0 else exit_code
        return CommandResult(
            exit_code=exit_code,
            stdout=self.stdout.text,
            stderr=self.stderr.text,
            reason=self._stopped.result() if self._stopped.done() else _reason(exit_code, os.WIFSIGNALED(status), is_full, *grew),
            seconds=self._loop.time() - began,
        )

    def _refused(self, error: OSError, seconds: float) -> CommandResult:
        reason = "memory_limit" if error.errno == errno.ENOMEM else "process_limit"
        text = f"the command was not started: {error.strerror}\n"
        return CommandResult(exit_code=NOT_STARTED, stdout="", stderr=text, reason=reason, seconds=seconds)

    async def _start(self) -> "tuple[str, asyncio.Future]":
        started = self._started
        variables = [f"{name}={value}" for name, value in started.environment.items()]
        stdin = sealed_file(started.stdin) if started.stdin else os.open(os.devnull, os.O_RDONLY)
        try:
            fields = (started.mode, started.folder, str(len(variables)), *variables, *started.words)
            files = (stdin, self.stdout.write_end, self.stderr.write_end)
            return await self._channel.send("run", *fields, files=files)
        except BaseException:
            self.stdout.close()
            self.stderr.close()
            raise
        finally:
            os.close(stdin)
            self.stdout.start()
            self.stderr.start()

    async def _end(self, key: str, reply: "asyncio.Future") -> None:
        """Ends the command, and returns when it and all that it started have ended."""
        await self._channel.tell("kill", key)
        await asyncio.wait({reply}, timeout=GONE_SECONDS)
        if not reply.done():
            raise SandboxError(f"a command could not be ended within {GONE_SECONDS:g} s")

    async def _watch(self) -> None:
        """Measures resources that the kernel does not limit."""
        if self._group.bounds_memory and self._group.bounds_processes:
            return
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            used = used_by(self._channel.first_process, memory_limit=self._config.memory_bytes)
            self._reached |= used.num_processes >= self._config.num_processes
            if used.memory_bytes > self._config.memory_bytes:
                self._stop("memory_limit")

    def _stop(self, reason: str) -> None:
        if not self._stopped.done():
            self._stopped.set_result(reason)


def _reason(exit_code: int, is_signal: bool, is_full: bool, out_of_memory: bool, too_many: bool) -> str:
    """The reason of a command that ended by itself: a limit that it ran into, if it failed."""
    if exit_code == 0:
        return "finished"
    for reached, reason in ((out_of_memory, "memory_limit"), (is_full, "disk_limit"), (too_many, "process_limit")):
        if reached:
            return reason
    if exit_code == 128 + signal.SIGXFSZ:
        return "disk_limit"
    return "killed" if is_signal else "finished"
