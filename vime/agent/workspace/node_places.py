"""A node-wide semaphore across this user's processes, implemented as N lock files."""

import asyncio
import contextlib
import fcntl
import itertools
import os
import random
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

_AGAIN_SECONDS = 0.02
_queues: dict[tuple[asyncio.AbstractEventLoop, str, int], asyncio.Semaphore] = {}


@asynccontextmanager
async def node_place(name: str, limit: int) -> AsyncIterator[None]:
    """Waits for one of `limit` places of this name and holds it within the block; a process that dies loses its places."""
    async with _queue(name, limit):
        file = await _locked(name, limit)
        try:
            yield
        finally:
            os.close(file)


def _queue(name: str, limit: int) -> asyncio.Semaphore:
    """The semaphore of this event loop, so that at most `limit` of its tasks look for a place, in order of arrival."""
    for key in list(_queues):
        if key[0].is_closed():
            _queues.pop(key, None)
    return _queues.setdefault((asyncio.get_running_loop(), name, limit), asyncio.Semaphore(limit))


async def _locked(name: str, limit: int) -> int:
    """A locked file."""
    folder = _folder() / name
    folder.mkdir(exist_ok=True, mode=0o700)
    while True:
        first = random.randrange(limit)
        for number in range(limit):
            file = os.open(folder / str((first + number) % limit), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return file
            os.close(file)
        await asyncio.sleep(_AGAIN_SECONDS * (1 + random.random()))


def _folder() -> Path:
    """The folder of this user's lock files; the first names may belong to other users, or to users of another user namespace."""
    for number in itertools.count():
        folder = Path(tempfile.gettempdir(), f"vime-places-{os.geteuid()}-{number}")
        folder.mkdir(exist_ok=True, mode=0o700)
        if folder.stat().st_uid == os.geteuid() and os.access(folder, os.W_OK):
            return folder
    raise AssertionError("itertools.count ends")
