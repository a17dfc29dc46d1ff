"""Calls of clients: each runs once, in the order of its model's numbers, and its result waits until it is fetched.

A call that comes again, because the client has lost the answer, is the same call. Calls of a model may arrive in any order: one
that is early waits for those before it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from vime.errors import BadRequestError, VimeError, describe
from vime.tasks import cancel

logger = logging.getLogger(__name__)

Work = Callable[[], Awaitable[Any]]
MOST_WAITING = 1024
"""Calls of one model that may wait."""
MOST_RESULTS, MOST_BYTES = 4096, 2**28
"""Results of one owner that are kept, and their bytes; older ones are forgotten, first those that were fetched."""


class FullError(Exception):
    """Too many calls wait: the client may make this one again."""


class Failed(Exception):
    """A call that has failed: its text, and whether the `user` or the `server` can mend it."""

    def __init__(self, text: str, *, category: str) -> None:
        super().__init__(text)
        self.text, self.category = text, category


@dataclass(kw_only=True, slots=True)
class Call:
    """A call and its result."""

    request_id: str
    owner: str
    result: "asyncio.Future[Any]"
    was_fetched: bool = False

    @property
    def num_bytes(self) -> int:
        """The size of a result that is bytes; others are small."""
        found = self.result.result() if self.result.done() and self.result.exception() is None else None
        return len(found) if isinstance(found, bytes) else 0


@dataclass(kw_only=True, slots=True)
class Line:
    """The calls of one model, by their numbers."""

    next: int
    waiting: dict[int, tuple[Call, Work]] = field(default_factory=dict)
    runner: "asyncio.Task[None] | None" = None


class CallQueue:
    """All calls of a service."""

    def __init__(self) -> None:
        self._calls: dict[str, Call] = {}
        self._lines: dict[str, Line] = {}
        self._single: dict[str, asyncio.Task[None]] = {}

    def begin(self, line: str, *, first: int) -> None:
        """Opens the line of a model, whose first call has this number."""
        self._lines.setdefault(line, Line(next=first))

    def in_line(self, line: str, number: int, work: Work, *, owner: str) -> str:
        """Queues a call at its number, and returns its id; one that is known already does not run again.

        Raises BadRequestError if the number has passed and its result is gone, FullError if too many calls wait.
        """
        request_id, opened = f"{line}:{number}", self._lines[line]
        if request_id in self._calls:
            return request_id
        if number < opened.next:
            raise BadRequestError(f"seq_id={number}: this call was made long ago, and its result is gone")
        if len(opened.waiting) >= MOST_WAITING and number != opened.next:
            raise FullError(f"seq_id={number}: {len(opened.waiting)} calls of this model wait already")
        opened.waiting[number] = self._add(request_id, owner), work
        if opened.runner is None or opened.runner.done():
            opened.runner = asyncio.create_task(self._run(opened))
        return request_id

    def alone(self, request_id: str, work: Work, *, owner: str) -> str:
        """Starts a call beside all others, unless it is known already."""
        if request_id not in self._calls:
            task = asyncio.create_task(_settle(self._add(request_id, owner), work))
            self._single[request_id] = task
            task.add_done_callback(lambda _: self._single.pop(request_id, None))
        return request_id

    def get(self, request_id: str, *, owner: str) -> Call | None:
        """A call of an owner by its id; None if there is none, or no more."""
        call = self._calls.get(request_id)
        return call if call is not None and call.owner == owner else None

    async def end(self, line: str) -> None:
        """Forgets a model's calls, those that wait and their results; the one at work is finished."""
        opened = self._lines.pop(line, None)
        if opened is None:
            return
        for call, _ in opened.waiting.values():
            if not call.result.done():
                call.result.set_exception(Failed("the model is gone", category="user"))
                call.result.exception()
        opened.waiting.clear()
        if opened.runner is not None and opened.runner is not asyncio.current_task():
            await asyncio.wait([opened.runner])

    async def abandon(self, request_id: str) -> None:
        """Ends a call that runs alone."""
        if (task := self._single.get(request_id)) is not None:
            await cancel([task])

    async def close(self) -> None:
        """Ends all calls."""
        runners = [line.runner for line in self._lines.values() if line.runner is not None]
        await cancel([*runners, *self._single.values()])

    def _add(self, request_id: str, owner: str) -> Call:
        call = Call(request_id=request_id, owner=owner, result=asyncio.get_running_loop().create_future())
        self._calls[request_id] = call
        own = [each for each in self._calls.values() if each.owner == owner and each.result.done()]
        own.sort(key=lambda each: not each.was_fetched)
        number, num_bytes = len(own), sum(each.num_bytes for each in own)
        for each in own:
            if number <= MOST_RESULTS and num_bytes <= MOST_BYTES:
                break
            number, num_bytes = number - 1, num_bytes - each.num_bytes
            del self._calls[each.request_id]
        return call

    async def _run(self, line: Line) -> None:
        while line.next in line.waiting:
            call, work = line.waiting.pop(line.next)
            await _settle(call, work)
            line.next += 1


async def _settle(call: Call, work: Work) -> None:
    """Runs a call, and notes its result or its error; a defect of ours fails this call alone."""
    try:
        result = await work()
    except asyncio.CancelledError:
        _fail(call, Failed("the call was cancelled", category="user"))
        raise
    except BadRequestError as error:
        _fail(call, Failed(str(error), category="user"))
    except VimeError as error:
        _fail(call, Failed(f"{type(error).__name__}: {error}", category="server"))
    except Exception as error:
        logger.exception("%s failed", call.request_id)
        _fail(call, Failed(describe(error), category="server"))
    else:
        call.result.set_result(result)


def _fail(call: Call, failed: Failed) -> None:
    call.result.set_exception(failed)
    call.result.exception()  # it was taken note of, also if nobody fetches it
