"""`Workspace`: a repository and a shell in a bubblewrap sandbox, for as long as a rollout."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import replace

from aiohttp import web

from vime.agent.memory_file import sealed_file
from vime.agent.system_calls import workspace_filter
from vime.agent.workspace.channel import Channel, ChannelReply
from vime.agent.workspace.command_output import PRINTED
from vime.agent.workspace.contract import NOTHING, TREE
from vime.agent.workspace.control_group import ControlGroup, parents
from vime.agent.workspace.node_places import node_place
from vime.agent.workspace.own_git import apply_patch, snapshot
from vime.agent.workspace.prepare import Prepared
from vime.agent.workspace.results import Applied, CommandResult, Diff
from vime.agent.workspace.running_command import RunningCommand, Started
from vime.agent.workspace.starter import start
from vime.agent.workspace.view import GIT, empty_folders, environment_of, limits_of, view_of, writable_folders
from vime.config import WorkspaceConfig
from vime.errors import SandboxError
from vime.machine import num_cores

GONE_SECONDS, GROUP_SECONDS, AGAIN_SECONDS = 10.0, 2.0, 0.005
SHUTDOWN_SECONDS = 1.0
"""Time limit of calls that are under way when an application is no longer served."""
OWN_PROCESSES = 2
"""bubblewrap and the first process, beside those of commands."""
Waits = Callable[[], AbstractContextManager[None]]


class Workspace:
    """A workspace in bubblewrap (`WorkspaceLike`); `open` makes one."""

    def __init__(self, config: WorkspaceConfig, *, environment: Mapping[str, str], folder: str, waits: Waits) -> None:
        self._config, self._folder, self._waits = config, folder, waits
        self._environment = environment_of(config) | dict(environment)
        self._loop = asyncio.get_running_loop()
        self._channel = Channel()
        self._group: ControlGroup | None = None
        self._messages = -1
        self._over = self._loop.time() + config.life_seconds
        self._timer: asyncio.TimerHandle | None = None
        self._ending: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._scratch = asyncio.Lock()

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        prepared: Prepared,
        config: WorkspaceConfig,
        *,
        binds: Mapping[str, str] = NOTHING,
        places: Mapping[str, str] = NOTHING,
        folder: str = TREE,
        environment: Mapping[str, str] = NOTHING,
        waits: Waits = nullcontext,
    ) -> AsyncIterator["Workspace"]:
        """A workspace on a prepared tree, once the node has a place for it; all of it is gone when the block ends.

        `binds` are paths of the host that can be read inside, with their places there. `places` are further places of folders of
        the tree, `{"/app": "app"}`, which are made if the tree lacks them; whatever is written there is a change of the tree.
        Commands start in `folder`, and relative paths begin there. `environment` is added to that of every command. What the
        workspace waits for happens within `waits()`. Raises SandboxError if it does not start.
        """
        async with contextlib.AsyncExitStack() as stack:
            with waits():
                await stack.enter_async_context(node_place("workspaces", config.num_workspaces))
            try:
                box = cls(config, environment=environment, folder=folder, waits=waits)
            except OSError as error:
                raise SandboxError(f"the workspace did not start: {error}") from error
            try:
                await box._start(prepared, dict(binds), dict(places))
                yield box
            finally:
                await box.close()

    @property
    def lost(self) -> str:
        """The reason why nothing can be done in it any more; "" while something can."""
        return self._channel.lost

    @property
    def first_process(self) -> int:
        """The number of the first process on this machine."""
        return self._channel.first_process

    async def run(
        self,
        command: str | list[str],
        *,
        seconds: float | None = None,
        stdin: bytes = b"",
        folder: str | None = None,
        environment: Mapping[str, str] = NOTHING,
        output_bytes: int | None = None,
        keep: bool = False,
        queues: bool = True,
    ) -> CommandResult:
        """Runs a command; see `WorkspaceLike.run`."""
        limit = self._config.num_commands or 2 * num_cores()
        async with contextlib.AsyncExitStack() as stack:
            if queues:
                with self._waits():
                    await stack.enter_async_context(node_place("commands", limit))
            left = self._over - self._loop.time()
            if left <= 0:
                text = f"the workspace's time is over: workspace.life_seconds={self._config.life_seconds:g}\n"
                return CommandResult(exit_code=128 + signal.SIGKILL, stdout="", stderr=text, reason="life_limit", seconds=0.0)
            kept = self._config.output_bytes if output_bytes is None else output_bytes
            own_limit = self._config.command_seconds if seconds is None else seconds
            started = Started(
                words=["bash", "-c", command] if isinstance(command, str) else command,
                folder=self._folder if folder is None else folder,
                environment=self._environment | dict(environment),
                stdin=stdin,
                seconds=min(left, own_limit),
                keep_bytes=kept,
                most_bytes=PRINTED * kept,
                mode="keeps" if keep else "ends",
            )
            end, _ = await self._command(started)
        return replace(end, reason="life_limit") if end.reason == "killed" and self._ending is not None else end

    async def read(self, path: str, *, most_bytes: int | None = None) -> bytes:
        """The content of a file; see `WorkspaceLike.read`."""
        reply = await self._ask("read", os.path.join(self._folder, path), path=path)
        most = self._config.disk_bytes if most_bytes is None else most_bytes
        with open(reply.files[0], "rb") as file:
            content = file.read(most + 1)
        if len(content) > most:
            raise ValueError(f"{path} is larger than {most} bytes")
        return content

    async def write(self, path: str, content: bytes | str) -> None:
        """Writes a file; see `WorkspaceLike.write`."""
        file = sealed_file(content)
        try:
            await self._ask("write", os.path.join(self._folder, path), path=path, files=[file])
        finally:
            os.close(file)

    async def diff(self) -> Diff:
        """All changes of the tree; see `WorkspaceLike.diff`."""
        async with self._scratch:
            return await snapshot(self._ask, self._command, self._config)

    async def apply(self, patch: bytes | str) -> Applied:
        """Applies a patch; see `WorkspaceLike.apply`."""
        async with self._scratch:
            return await apply_patch(patch.encode() if isinstance(patch, str) else patch, self._ask, self._command, self._config)

    @asynccontextmanager
    async def serve(self, app: web.Application) -> AsyncIterator[str]:
        """Serves an application to the programs inside; see `WorkspaceLike.serve`."""
        reply = await self._ask("listen")
        # a socket stays in the network in which it was made, so that nothing has to be relayed
        with socket.socket(fileno=reply.files[0]) as listener:
            listener.setblocking(False)
            runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=SHUTDOWN_SECONDS)
            await runner.setup()
            try:
                await web.SockSite(runner, listener).start()
                yield f"http://127.0.0.1:{int(reply.fields[0])}"
            finally:
                await runner.cleanup()

    async def close(self) -> None:
        """Ends everything in the workspace and removes it; a second call waits for the first."""
        if self._closing is None:
            self._closing = self._loop.create_task(self._end())
        await asyncio.shield(self._closing)

    async def _start(self, prepared: Prepared, binds: dict[str, str], places: dict[str, str]) -> None:
        config, allowed = self._config, self._config.num_processes + OWN_PROCESSES
        memory_bytes = config.memory_bytes + config.disk_bytes
        try:
            self._group = ControlGroup(parents(), memory_bytes=memory_bytes, num_processes=allowed)
        except OSError as error:
            raise SandboxError(f"the workspace did not start: {error}") from error
        num_processes = allowed + OWN_PROCESSES if self._group.bounds_processes else allowed  # the group also counts refusals
        view = view_of(tuple(config.packages), tuple(config.visible), num_processes, tuple(sorted(places.items())))
        request = {
            "tree": str(prepared.tree),
            "binds": view.binds | {str(prepared.pristine): GIT} | binds,
            "files": view.files,
            "links": view.links,
            "folders": [*empty_folders(), *places],
            "places": list(places.values()),
            "limits": limits_of(config),
            "writable": writable_folders(config),
            "control_groups": self._group.process_files,
            "command": view.command,
        }
        self._timer = self._loop.call_later(config.life_seconds, self._out_of_time)
        self._messages = start(self._channel, request, system_calls=workspace_filter(memory_files=self._group.bounds_memory))
        try:
            await self._channel.begun()
        except SandboxError as error:
            said = os.pread(self._messages, 500, 0).decode(errors="replace").strip()
            raise SandboxError(f"the workspace did not start: {said or error}") from error

    async def _ask(self, verb: str, *fields: str | bytes, path: str = "", files: Sequence[int] = ()) -> ChannelReply:
        """Asks the first process; errors of the file system name the path."""
        try:
            return await self._channel.ask(verb, *fields, files=files)
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from None

    async def _command(self, started: Started) -> tuple[CommandResult, bytes]:
        assert self._group is not None, "the workspace was not started"
        command = RunningCommand(started, channel=self._channel, group=self._group, config=self._config)
        return await command.run(), command.stdout.content

    def _out_of_time(self) -> None:
        """Ends all programs; files can still be read."""
        self._ending = self._loop.create_task(self._channel.tell("end"))

    async def _end(self) -> None:
        """Ends the first process; the kernel then ends all others and removes the mounts."""
        if self._timer is not None:
            self._timer.cancel()
        await self._channel.settled(GONE_SECONDS)  # in the middle of its start, bubblewrap cannot be ended safely
        for process in self._channel.processes[1:]:  # the first one inside; bubblewrap's own takes it off, and then ends
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, signal.SIGKILL)
        self._channel.close()
        for process in self._channel.processes:
            await _ended(process)
            os.close(process)
        if self._messages >= 0:
            os.close(self._messages)
        give_up = self._loop.time() + GROUP_SECONDS
        while self._group is not None and not self._group.removed() and self._loop.time() < give_up:
            await asyncio.sleep(AGAIN_SECONDS)


async def _ended(process: int) -> None:
    """Waits for the end of a process by its descriptor."""
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    loop.add_reader(process, lambda: ended.done() or ended.set_result(None))
    try:
        await asyncio.wait({ended}, timeout=GONE_SECONDS)
    finally:
        loop.remove_reader(process)
