"""`WorkspaceLike`: the interface of a workspace that agents, harnesses and graders use, whatever implements it."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from aiohttp import web

from vime.agent.workspace.results import Applied, CommandResult, Diff

TREE = "/testbed"
"""The place of the repository inside; by default commands start here, and relative paths begin here."""
HOME = "/home/agent"
NOTHING: Mapping[str, str] = {}


class WorkspaceLike(Protocol):
    """A place with a repository and a shell that lives as long as a rollout.

    `Workspace` implements it with bubblewrap; a container runtime could implement the same calls. All of them raise SandboxError
    if the workspace is lost.
    """

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
        """Runs a command line of bash (or one program with its arguments) and returns its result, even if it fails.

        `seconds` and `output_bytes` (per stream) default to the configuration, `folder` to the one in which the workspace was
        opened. Everything that the command has started ends with it, including when the call is cancelled. To keep a server
        running in the background, run it in a task of its own, or start it in a command with `keep=True`; it then lives as long
        as the workspace. With `queues=False` the command takes none of the node's places, which suits programs that mostly wait,
        as agents do.
        """
        ...

    async def read(self, path: str, *, most_bytes: int | None = None) -> bytes:
        """The content of a file; raises OSError as `open` does, and ValueError if it is larger than `most_bytes`."""
        ...

    async def write(self, path: str, content: bytes | str) -> None:
        """Writes a file with the folders above it; raises OSError as `open` does."""
        ...

    async def diff(self) -> Diff:
        """All changes of the tree since it was prepared, committed or not, without ignored files."""
        ...

    async def apply(self, patch: bytes | str) -> Applied:
        """Applies a patch to the tree, by the first of `git apply`, `git apply --3way` and `patch -p1` that takes all of it."""
        ...

    def serve(self, app: web.Application) -> AbstractAsyncContextManager[str]:
        """Serves an application within the `async with` block, for programs inside alone; gives its URL, `http://127.0.0.1:PORT`.

        It is all that they can reach. The handlers run in the owner's event loop.
        """
        ...

    async def close(self) -> None:
        """Ends everything in the workspace and removes it; a second call does nothing."""
        ...
