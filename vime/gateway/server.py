"""`Gateway`: the HTTP listener of one rollout worker, in front of the sessions of its agents.

    /s/{secret}/v1/chat/completions      OpenAI Chat Completions
    /s/{secret}/v1/models                the session's model, under the names that its client uses
    /health                              answers 200

Nothing else is served: the routes of vLLM itself cannot be reached from here.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import orjson
from aiohttp import web

from vime.errors import SampleError, ServerError, describe
from vime.gateway.chat import ChatRequest, Refused
from vime.gateway.chat_completions import ChatCompletions
from vime.gateway.dialect import Dialect, Event
from vime.gateway.pending_call import PendingCall
from vime.gateway.session import SESSION_OVER, AgentSession

MOST_BODY_BYTES = 64 * 2**20
LOOPBACK = "127.0.0.1"
RETRY_HEADER = "x-stainless-retry-count"
"""How often an SDK has sent this request before."""
DIALECTS: tuple[Dialect, ...] = (ChatCompletions(),)


class Gateway:
    """Serves sessions; `start` it in the event loop whose models they use."""

    def __init__(self, dialects: Sequence[Dialect] = DIALECTS) -> None:
        self._sessions: dict[str, AgentSession] = {}
        self._dialects = dialects
        self._runner: web.AppRunner | None = None
        self._url = ""

    async def start(self, host: str = LOOPBACK) -> None:
        """Listens on a free port."""
        app = web.Application(client_max_size=MOST_BODY_BYTES)
        for dialect in self._dialects:
            app.router.add_post(f"/s/{{secret}}{dialect.route}", self._handler(dialect))
        app.router.add_get("/s/{secret}/v1/models", self._models)
        app.router.add_get("/health", self._health)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, 0)
        await site.start()
        port = self._runner.addresses[0][1]
        self._url = f"http://{host}:{port}"

    async def stop(self) -> None:
        """Ends all sessions and closes the port."""
        for session in list(self._sessions.values()):
            self.close(session)
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def open(self, session: AgentSession) -> None:
        """Gives a session its URL."""
        assert self._url, "start comes first"
        session.url = f"{self._url}/s/{session.secret}"
        self._sessions[session.secret] = session

    def close(self, session: AgentSession) -> None:
        """Takes its URL away; calls under way are given up."""
        session.end()
        self._sessions.pop(session.secret, None)

    def _handler(self, dialect: Dialect) -> Any:
        async def handle(http: web.Request) -> web.StreamResponse:
            try:
                return await self._serve(dialect, http)
            except Refused as refused:
                return _json(dialect.error(refused), status=refused.status)
            except (
                ServerError,
                SampleError,
            ) as error:  # the attempt is lost; at 400 agents stop at once
                return _json(dialect.error(Refused(str(error), code="attempt_lost")), status=400)

        return handle

    async def _serve(self, dialect: Dialect, http: web.Request) -> web.StreamResponse:
        session = self._session(http)
        body = await _body(http)
        request = dialect.parse(_parsed(body), http.headers)
        retried = http.headers.get(RETRY_HEADER, "0") not in ("", "0")
        call = session.call(dialect.route, body, request, retried=retried)
        call.follow(http.transport)
        try:
            if request.stream:
                response = await _stream(dialect, http, request, call)
            else:
                response = _json(dialect.answer(request, await call.answers()))
                await response.prepare(http)
                call.deliver()
                await response.write_eof()
        except asyncio.CancelledError:
            if call.is_over:  # the session gave it up
                raise Refused(session.over or "the session is over", code=SESSION_OVER) from None
            raise
        call.is_complete = True
        return response

    def _session(self, http: web.Request) -> AgentSession:
        session = self._sessions.get(http.match_info["secret"])
        if session is None:
            raise Refused("there is no such session, or it is over", code=SESSION_OVER)
        return session

    async def _models(self, http: web.Request) -> web.Response:
        try:
            session = self._session(http)
        except Refused as refused:
            return _json(self._dialects[0].error(refused), status=refused.status)
        model = {"id": session.model.name, "object": "model", "created": 0, "owned_by": "vime"}
        return _json({"object": "list", "data": [model]})

    async def _health(self, _: web.Request) -> web.Response:
        return _json({"sessions": len(self._sessions)})


async def _stream(dialect: Dialect, http: web.Request, request: ChatRequest, call: PendingCall) -> web.StreamResponse:
    """Server-sent events while the tokens come. The status line is sent with the first piece, so a refusal still has its own."""
    pieces, events = call.pieces(), dialect.stream(request)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"})

    async def send(found: Any) -> None:
        if not response.prepared:
            await response.prepare(http)
            call.deliver()
            found = [*events.begin(), *found]
        await response.write(b"".join(map(_event, found)))

    try:
        async for place, delta in pieces:
            await send(events.piece(place, delta))
        await send(events.end(await call.answers()))
    except (Refused, ServerError) as error:
        if not response.prepared:
            raise
        refused = error if isinstance(error, Refused) else Refused(describe(error), code="server_lost")
        await response.write(_event(("error", dialect.error(refused))))
    await response.write_eof()
    return response


def _event(event: Event) -> bytes:
    name, data = event
    payload = data.encode() if isinstance(data, str) else orjson.dumps(data)
    return (f"event: {name}\n".encode() if name else b"") + b"data: " + payload + b"\n\n"


async def _body(http: web.Request) -> bytes:
    try:
        return await http.read()
    except web.HTTPRequestEntityTooLarge:
        raise Refused(f"the body is larger than {MOST_BODY_BYTES} bytes", status=413, code="too_large") from None


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Refused(f"the body is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise Refused(f"the body must be a JSON object, not {type(found).__name__}")
    return found


def _json(body: dict[str, Any], *, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json")
