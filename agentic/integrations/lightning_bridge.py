"""The bridge between vime and Agent Lightning's store; runs beside the store, on 127.0.0.1, at a path that cannot be guessed.

    POST /{secret}/rollouts                                              vime: run one rollout, and say how it goes
    …    /{secret}/rollout/{rid}/attempt/{aid}/v1/chat/completions       agents: the model of their rollout

A rollout lasts as long as vime's request for it. Its answer is a line of JSON when it is queued, one when a runner begins, and
one when it has ended. What agents ask is passed on to the session of their rollout, and recorded as a span.
"""

import asyncio
import json
import secrets
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp import web

from agentic.integrations.lightning_call import EventSplitter, RecordedCall, RolloutState, data_of
from vime.cluster.ports import BACKLOG, LOOPBACK

if TYPE_CHECKING:
    from agentic.integrations.lightning_store import LightningStore

POLL_SECONDS = 0.1
MOST_BODY_BYTES = 64 * 2**20
CHAT = "chat/completions"
OWN_HEADERS = {"host", "content-length", "content-encoding", "transfer-encoding", "connection", "accept-encoding"}
"""Headers of a request that belong to one connection, or to the body as it came."""
RETRY_HEADER = "x-stainless-retry-count"


@dataclass(kw_only=True, slots=True, eq=False)
class OpenRollout:
    """A rollout that vime waits for. OpenRollout(session_url="http://127.0.0.1:4000/s/secret/v1")"""

    session_url: str
    began: "asyncio.Future[RolloutState]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    ended: "asyncio.Future[RolloutState]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    recorded: set[tuple[int, ...]] = field(default_factory=set)
    """Tokens of its calls, by which the answer to a client that asks again is recognized."""

    def note(self, state: RolloutState) -> None:
        """Notes its state."""
        if (state.attempt_id or state.end) and not self.began.done():
            self.began.set_result(state)
        if state.end and not self.ended.done():
            self.ended.set_result(state)


class Bridge:
    """Serves vime and the agents; `start` it in the event loop of the store."""

    def __init__(self, store: "LightningStore", data: dict[str, Any]) -> None:
        """`data` are Agent Lightning's data sets, `train` and `val`; the agents get their rows as they are."""
        self._store, self._data = store, data
        self._secret = secrets.token_urlsafe(24)
        self._open: dict[str, OpenRollout] = {}
        self._attempts: Counter[str] = Counter()
        """Attempts at each of vime's rollouts."""
        self._enqueueing = asyncio.Lock()
        self._runner: web.AppRunner | None = None
        self._client: aiohttp.ClientSession | None = None
        self.url = ""

    async def start(self) -> None:
        """Listens on a free port."""
        app = web.Application(client_max_size=MOST_BODY_BYTES)
        app.router.add_post(f"/{self._secret}/rollouts", self._run)
        app.router.add_route("*", f"/{self._secret}/rollout/{{rollout}}/attempt/{{attempt}}/v1/{{tail:.+}}", self._pass_on)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, LOOPBACK, 0, backlog=BACKLOG).start()
        self.url = f"http://{LOOPBACK}:{self._runner.addresses[0][1]}/{self._secret}"
        self._client = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None), connector=aiohttp.TCPConnector(limit=0))

    async def stop(self) -> None:
        """Closes the port."""
        if self._client is not None:
            await self._client.close()
        if self._runner is not None:
            await self._runner.cleanup()

    async def watch(self) -> None:
        """Follows the rollouts that vime waits for. Raises RuntimeError if no runner lives."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            if not self._open:
                continue
            for state in await self._store.states(list(self._open)):
                if opened := self._open.get(state.rollout_id):
                    opened.note(state)
            if self._open and not await self._store.has_runners():
                raise RuntimeError(f"no runner of Agent Lightning lives, and {len(self._open)} rollouts wait for one")

    async def _run(self, http: web.Request) -> web.StreamResponse:
        asked = await http.json()
        attempt = self._attempts[asked["session"]]
        self._attempts[asked["session"]] += 1
        metadata = {**asked["metadata"], "vime_session": asked["session"], "vime_attempt": attempt}
        opened, rows = OpenRollout(session_url=asked["session_url"]), self._data["val" if asked["mode"] == "val" else "train"]
        async with self._enqueueing:
            resources_id = await self._store.resources(asked["weights"], f"{self.url}/v1")
            rollout_id = await self._store.enqueue(
                rows[asked["task"]], mode=asked["mode"], resources_id=resources_id, metadata=metadata
            )
            self._open[rollout_id] = opened
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        try:
            await response.prepare(http)
            await _say(response, rollout_id=rollout_id, resources_id=resources_id, vime_attempt=attempt)
            began = await opened.began
            await _say(response, attempt_id=began.attempt_id, runner=began.runner)
            end = await opened.ended
            reward = await self._store.reward(rollout_id, end.attempt_id) if end.attempt_id else None
            await _say(response, end=end.end, reason=end.reason, reward=reward)
            await response.write_eof()
        finally:
            del self._open[rollout_id]
            if not opened.ended.done():
                await asyncio.shield(self._store.cancel(rollout_id))
        return response

    async def _opened(self, rollout_id: str, attempt_id: str) -> OpenRollout | None:
        """The rollout that an agent means; None if it has ended or another attempt at it is running."""
        if rollout_id not in self._open:
            async with self._enqueueing:  # a runner may be faster than we are
                pass
        opened = self._open.get(rollout_id)
        return opened if opened is not None and await self._store.attempt_of(rollout_id) == attempt_id else None

    async def _pass_on(self, http: web.Request) -> web.StreamResponse:
        rollout_id, attempt_id, tail = http.match_info["rollout"], http.match_info["attempt"], http.match_info["tail"]
        opened = await self._opened(rollout_id, attempt_id)
        if opened is None:
            return _refusal(f"attempt {attempt_id} at rollout {rollout_id} is over")
        body, call, number = await http.read(), RecordedCall(began=time.time()), 0
        is_recorded = tail == CHAT and http.method == "POST"
        if is_recorded:
            body = _with_tokens(body)
            number = await self._store.next_number(rollout_id, attempt_id)  # when it arrives: the reward comes later

        async def record() -> None:
            call.ended = time.time()
            tokens = tuple(number for choice in call.choices for number in (*call.prompt_ids, -1, *choice.token_ids))
            is_again = http.headers.get(RETRY_HEADER, "0") not in ("", "0") and tokens in opened.recorded
            if call.is_known and not is_again:
                opened.recorded.add(tokens)
                await self._store.add_call(rollout_id, attempt_id, number=number, call=call)

        assert self._client is not None, "start comes first"
        headers = {name: value for name, value in http.headers.items() if name.lower() not in OWN_HEADERS}
        url = f"{opened.session_url}/{tail}"
        try:
            async with self._client.request(http.method, url, data=body, headers=headers, params=http.query) as found:
                if found.content_type == "text/event-stream":
                    return await _stream(http, found, call, record)
                answer = await found.read()
        except aiohttp.ClientConnectionError as error:
            return _refusal(f"the session of rollout {rollout_id} has gone: {error}")
        if is_recorded and found.status == 200:
            call.add(json.loads(answer))
            await record()
        return web.Response(body=answer, status=found.status, content_type=found.content_type)


def _refusal(message: str) -> web.Response:
    """An answer at which agents stop at once."""
    return web.json_response({"error": {"message": message, "type": "invalid_request_error"}}, status=400)


async def _say(response: web.StreamResponse, **news: Any) -> None:
    await response.write(json.dumps(news).encode() + b"\n")


def _with_tokens(body: bytes) -> bytes:
    """The request, which also asks for token ids and logprobs. What cannot be read is passed on, to be refused."""
    try:
        asked = json.loads(body)
    except ValueError:
        return body
    return json.dumps({**asked, "return_token_ids": True, "logprobs": True}).encode() if isinstance(asked, dict) else body


async def _stream(http: web.Request, found: aiohttp.ClientResponse, call: RecordedCall, record: Any) -> web.StreamResponse:
    """Passes events on as they come; the last one, which has no data, comes when the call is in the store."""
    response = web.StreamResponse(status=found.status, headers={"Content-Type": found.headers["Content-Type"]})
    await response.prepare(http)
    events = EventSplitter()
    async for piece in found.content.iter_any():
        for event in events.feed(piece):
            data = data_of(event)
            if data is None:
                await record()
            else:
                call.add(data)
            await response.write(event)
    await response.write_eof()
    return response
