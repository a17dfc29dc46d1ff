"""Calls of clients: each has its effect once, in the order of its model's numbers, and its result waits until it is fetched.

A call that comes again, because the client has lost the answer, is the same call. Calls of a model may arrive in any order: one
that is early waits for those before it. All of them stand in the journal, so that a service that was killed goes on with them.
"""

import asyncio
import logging
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from vime.errors import BadRequestError, VimeError, describe
from vime.service.journal import JSON, PROTOBUF, SERVER, USER, Entry, Journal, Outcome
from vime.tasks import cancel

logger = logging.getLogger(__name__)

Work = Callable[[], Awaitable[Any]]
MOST_WAITING, MOST_WAITING_BYTES = 1024, 2**30
"""Calls of one model that may wait, and the bytes of all calls of one owner that are not over."""
MOST_RESULTS, MOST_BYTES = 4096, 2**28
"""Results of one owner that are kept, and their bytes; older ones are forgotten, first those that were fetched."""
MOST_LOSSES = 3
"""Losses of the trainer during one call, after which the call fails, since it is probably the reason."""
RETRY_SECONDS = 5.0
"""Wait before an outcome is written again, for example on a full disk."""


class FullError(Exception):
    """Too many calls wait: the client may make this one again."""


class Interrupted(Exception):
    """The trainer was lost during a call, which runs again when there is a new one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """A call that was read.

    Example: `Planned(id="3f2a:train:0:7", line="3f2a:train:0", number=7, work=step, repeated_after=(JSON, USER))`.
    """

    id: str
    work: Work
    """Returns bytes (protobuf), or an object that becomes JSON."""
    line: str = ""
    """The model whose calls run one after the other; without it, the call runs beside all others."""
    number: int = 0
    repeated_after: Sequence[str] = ()
    """Outcomes after which a new trainer needs the call again, because it has changed the weights, or gradients."""
    num_tokens: int = 0
    """Tokens that it reads, and that its reply may have."""
    ends_line: bool = False
    """True if the line's model is no more after it."""
    then: Work | None = None
    """Work between its outcome and the next call, before the client knows of it."""


@dataclass(kw_only=True, slots=True)
class Call:
    """A call that is not over."""

    entry: Entry
    plan: Planned
    num_bytes: int
    outcome: "asyncio.Future[Outcome]"
    is_abandoned: bool = False


@dataclass(kw_only=True, slots=True)
class Line:
    """The calls of one model, by their numbers."""

    next: int
    waiting: dict[int, Call] = field(default_factory=dict)
    repeated: list[Planned] = field(default_factory=list)
    """Calls that bring the weights back to where they were, before all others."""
    runner: "asyncio.Task[None] | None" = None


class CallQueue:
    """All calls of a service."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._calls: dict[str, Call] = {}
        self._lines: dict[str, Line] = {}
        self._single: dict[str, asyncio.Task[None]] = {}
        self._results: dict[str, list[int]] = {}
        self._waiting_bytes: dict[str, int] = defaultdict(int)
        self.num_finished = 0

    def num_open(self) -> Counter[str]:
        """The number of calls that are not over by the model that they are of; an empty name counts those of no model."""
        return Counter(call.entry.line for call in self._calls.values())

    def begin(self, line: str, *, first: int) -> None:
        """Opens the line of a model, whose first call has this number."""
        if line not in self._lines:
            self._journal.begin(line, first=first)
            self._lines[line] = Line(next=first)

    def resume(self, line: str, *, next: int, repeated: list[Planned]) -> None:
        """Opens a line again that the journal knows, with the calls that its weights lack."""
        self._lines[line] = Line(next=next, repeated=repeated)
        self._go_on(self._lines[line])

    def knows(self, request_id: str) -> bool:
        """True if a call has come before."""
        return request_id in self._calls or self._journal.has(request_id)

    def is_open(self, request_id: str) -> bool:
        """True if a call has come and is not over."""
        return request_id in self._calls

    def add(self, plan: Planned, *, owner: str, route: str, body: bytes) -> str:
        """Notes a call and starts it at its turn; returns its id. One that is known already does not run again.

        Raises BadRequestError if its number has passed and its result is gone, FullError if too many calls wait.
        """
        if self.knows(plan.id):
            return plan.id
        opened = self._lines[plan.line] if plan.line else None
        is_awaited = opened is not None and plan.number == opened.next
        if opened is not None:
            if plan.number < opened.next:
                raise BadRequestError(f"seq_id={plan.number}: this call was made long ago, and its result is gone")
            if len(opened.waiting) >= MOST_WAITING and not is_awaited:
                raise FullError(f"seq_id={plan.number}: {len(opened.waiting)} calls of this model wait already")
        if self._waiting_bytes[owner] + len(body) > MOST_WAITING_BYTES and not is_awaited:
            raise FullError(f"the calls of this key that are not over have {self._waiting_bytes[owner]} bytes already")
        entry = Entry(id=plan.id, owner=owner, route=route, line=plan.line, number=plan.number, num_losses=0)
        self._journal.add(entry, body)
        self.restore(entry, plan, num_bytes=len(body))
        return plan.id

    def restore(self, entry: Entry, plan: Planned, *, num_bytes: int) -> None:
        """Starts a call at its turn that stands in the journal."""
        call = Call(entry=entry, plan=plan, num_bytes=num_bytes, outcome=asyncio.get_running_loop().create_future())
        self._calls[entry.id] = call
        self._waiting_bytes[entry.owner] += num_bytes
        if plan.line:
            self._lines[plan.line].waiting[plan.number] = call
            self._go_on(self._lines[plan.line])
        else:
            task = asyncio.create_task(self._alone(call))
            self._single[entry.id] = task
            task.add_done_callback(lambda _: self._single.pop(entry.id, None))

    async def outcome(self, request_id: str, *, owner: str, seconds: float) -> Outcome | None:
        """The outcome of an owner's call, or None if it is not over after this time. Raises LookupError if there is none."""
        call = self._calls.get(request_id)
        if call is not None and call.entry.owner == owner:
            done, _ = await asyncio.wait([call.outcome], timeout=seconds)
            if not done:
                return None
            self._journal.note_fetched(request_id)
            return call.outcome.result()
        if (found := self._journal.outcome(request_id, owner=owner)) is None:
            raise LookupError(request_id)
        return found

    async def end(self, line: str) -> None:
        """Ends a model's calls that wait; the one at work is finished."""
        opened = self._lines.pop(line, None)
        if opened is None:
            return
        for call in opened.waiting.values():
            self._over(call, Outcome(kind=USER, data=b"the model is gone"))
        opened.waiting.clear()
        opened.repeated.clear()
        if opened.runner is not None and opened.runner is not asyncio.current_task():
            await asyncio.wait([opened.runner])

    def forget(self, session: str, *, owner: str) -> None:
        """Forgets a session with its lines and results, after `end` of all its lines."""
        self._journal.remove_session(session)
        self._results.pop(owner, None)

    async def abandon(self, request_id: str, *, owner: str) -> None:
        """Ends an owner's call that runs alone."""
        call, task = self._calls.get(request_id), self._single.get(request_id)
        if call is not None and task is not None and call.entry.owner == owner:
            call.is_abandoned = True
            await cancel([task])

    async def close(self) -> None:
        """Stops all calls; those that are not over stay in the journal."""
        runners = [line.runner for line in self._lines.values() if line.runner is not None]
        await cancel([*runners, *self._single.values()])

    def _go_on(self, line: Line) -> None:
        if line.runner is None or line.runner.done():
            line.runner = asyncio.create_task(self._run(line))

    async def _run(self, line: Line) -> None:
        try:
            while line.repeated:
                await self._repeat(line.repeated[0])
                del line.repeated[:1]
            while line.next in line.waiting:
                await self._settle(line.waiting.pop(line.next))
                line.next += 1
        except Interrupted:
            return  # the next service goes on with it

    async def _repeat(self, plan: Planned) -> None:
        """Makes a call again for its effect; its outcome is known already, and a failure was one before."""
        try:
            await plan.work()
        except Interrupted:
            raise
        except BadRequestError:
            return
        except Exception:
            logger.exception("%s could not be repeated: its model has other weights than before", plan.id)

    async def _alone(self, call: Call) -> None:
        try:
            await self._settle(call)
        except Interrupted:
            return

    async def _settle(self, call: Call) -> None:
        """Runs a call, and notes its result or its error; a defect of ours fails this call alone."""
        plan = call.plan
        try:
            result = await plan.work()
            found = Outcome(kind=PROTOBUF, data=result) if isinstance(result, bytes) else _as_json(result)
        except asyncio.CancelledError:
            if call.is_abandoned:
                await self._finish(call, Outcome(kind=USER, data=b"the call was cancelled"))
            raise
        except Interrupted as lost:
            self._journal.note_loss(plan.id)
            if call.entry.num_losses + 1 < MOST_LOSSES:
                raise
            text = f"the trainer was lost during each of {MOST_LOSSES} attempts: {lost}"
            await self._finish(call, Outcome(kind=SERVER, data=text.encode()))
            raise
        except BadRequestError as error:
            found = Outcome(kind=USER, data=str(error).encode())
        except VimeError as error:
            found = Outcome(kind=SERVER, data=f"{type(error).__name__}: {error}".encode())
        except Exception as error:
            logger.exception("%s failed", plan.id)
            found = Outcome(kind=SERVER, data=describe(error).encode())
        await self._finish(call, found)

    async def _finish(self, call: Call, outcome: Outcome) -> None:
        plan = call.plan
        is_repeated = outcome.kind in plan.repeated_after
        while True:
            try:
                ends_line = plan.ends_line and outcome.kind == JSON
                self._journal.finish(call.entry, outcome, is_repeated=is_repeated, ends_line=ends_line)
                break
            except sqlite3.OperationalError:
                logger.exception("the outcome of %s cannot be written, next try in %.0f s", plan.id, RETRY_SECONDS)
                await asyncio.sleep(RETRY_SECONDS)
        self.num_finished += 1
        self._keep_few(call.entry.owner, len(outcome.data))
        if plan.then is not None and outcome.kind in (JSON, PROTOBUF):
            try:
                await plan.then()
            except (VimeError, OSError):
                logger.exception("after %s", plan.id)
        self._over(call, outcome)

    def _over(self, call: Call, outcome: Outcome) -> None:
        if self._calls.pop(call.entry.id, None) is not None:
            self._waiting_bytes[call.entry.owner] -= call.num_bytes
            call.outcome.set_result(outcome)

    def _keep_few(self, owner: str, num_bytes: int) -> None:
        """Forgets old results of an owner once there are too many."""
        if owner not in self._results:
            self._results[owner] = list(self._journal.num_results(owner))
        else:
            self._results[owner][0] += 1
            self._results[owner][1] += num_bytes
        number, size = self._results[owner]
        if number > MOST_RESULTS or size > MOST_BYTES:
            self._journal.forget_results(owner, most=MOST_RESULTS * 3 // 4, most_bytes=MOST_BYTES * 3 // 4)
            self._results[owner] = list(self._journal.num_results(owner))


def _as_json(result: Any) -> Outcome:
    return Outcome(kind=JSON, data=orjson.dumps(result))
