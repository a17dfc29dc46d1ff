"""Records in shared memory which piece of work a worker's event loop is executing; the record outlives the process.

A task records its work whenever it resumes, and erases the record when it waits. After a crash the record therefore names the
work in whose code the worker died. It names no work if the loop was idle (a thread crashed, or the process was killed from
outside). Tasks that a hook starts belong to the work of the hook.
"""

import asyncio
import mmap
import os
import struct
from collections.abc import Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from pathlib import Path
from typing import Any

NOBODY = 0
_NUMBER = struct.Struct("q")
_work: ContextVar[int] = ContextVar("work", default=NOBODY)


def begin(work: int) -> None:
    """Attributes the current task, and every task that it starts from now on, to a piece of work."""
    _work.set(work)


def current() -> int:
    """The number of the work that the current task belongs to, or `NOBODY`."""
    return _work.get()


def read(path: Path) -> int:
    """The work that was executing when the writer ended; `NOBODY` if none was, or if the file does not exist."""
    try:
        return _NUMBER.unpack(path.read_bytes())[0]
    except (OSError, struct.error):
        return NOBODY


class BlackBox:
    """The record of one process; create it inside the event loop whose tasks it shall follow."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(file, _NUMBER.size)
            self._notes = mmap.mmap(file, _NUMBER.size)
        finally:
            os.close(file)
        asyncio.get_running_loop().set_task_factory(self._make_task)

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any] | Generator[Any, None, Any], **options: Any
    ) -> "asyncio.Task[Any]":
        context: Context = options.get("context") or copy_context()
        work = context.get(_work, NOBODY)
        if work != NOBODY and asyncio.iscoroutine(coroutine):
            coroutine = _noted(self._notes, work, coroutine)
        return asyncio.Task(coroutine, loop=loop, **options)


async def _noted(notes: mmap.mmap, work: int, coroutine: Coroutine[Any, Any, Any]) -> Any:
    return await _Steps(notes, work, coroutine)


class _Steps:
    """Drives a coroutine and records its work between two waits."""

    def __init__(self, notes: mmap.mmap, work: int, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._notes, self._work, self._coroutine = notes, work, coroutine

    def __await__(self) -> Generator[Any, Any, Any]:
        notes, work, coroutine = self._notes, self._work, self._coroutine
        error: BaseException | None = None
        value = None
        while True:
            _NUMBER.pack_into(notes, 0, work)
            try:
                awaited = coroutine.send(value) if error is None else coroutine.throw(error)
            except StopIteration as end:
                return end.value
            finally:
                _NUMBER.pack_into(notes, 0, NOBODY)
            value = error = None
            try:
                value = yield awaited
            except GeneratorExit:
                coroutine.close()
                raise
            except BaseException as thrown:  # handed on: the coroutine decides what a cancellation means
                error = thrown
