"""`Gateway`: the HTTP listener of one rollout worker, in front of the sessions of its agents.

    /s/{secret}/v1/chat/completions      OpenAI Chat Completions
    /s/{secret}/v1/responses             OpenAI Responses; also …/input_tokens, and …/{id} for an earlier answer
    /s/{secret}/v1/messages              Anthropic Messages; also …/count_tokens
    /s/{secret}/v1/models                the session's model; clients may call it by any name
    /health                              answers 200

A client whose base URL lacks /v1 finds the same there. Nothing else is served: the routes of vLLM itself cannot be reached from
here, and a client that asks for another route gets an error in the form of its protocol.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, cast

import orjson
from aiohttp import web

from vime.chat.request import ChatRequest, Refused
from vime.cluster.ports import BACKLOG, LOOPBACK
from vime.errors import SampleError, ServerError, describe
from vime.gateway.anthropic_messages import AnthropicMessages
from vime.gateway.chat_completions import ChatCompletions
from vime.gateway.dialect import Dialect, Event
from vime.gateway.pending_call import PendingCall
from vime.gateway.responses import Compacting, Responses
from vime.gateway.session import SESSION_OVER, AgentSession
from vime.trajectory.messages import read_json

logger = logging.getLogger(__name__)

MOST_BODY_BYTES = 64 * 2**20
LOST = "attempt_lost"
RETRY_HEADER = "x-stainless-retry-count"
"""The header with the number of times that an SDK has sent this request before."""
PREFIX = "/s/{secret}"
VERSION = "/v1"
ROUTING_KEY = "X-SMG-Routing-Key"
"""The header by which clients of routers name their conversation."""
CALLER = "X-Session-ID"
"""The header by which agents of one session tell their conversations apart."""
NOT_SERVED = {
    "embeddings": "a session has a model that writes texts, and no embeddings: give their client a base URL of its own",
    "completions": "a prompt without messages has no place in a conversation: use chat/completions",
    "batches": "answers are given at once: send the requests one by one",
    "moderations": "a session has a model that writes texts, and no moderation",
    "input_items": "the items of an earlier answer's input are not kept",
    "cancel": "answers are given at once: close the connection",
}
"""The reason why routes of the protocols are not served, by a part of their path."""


def _secret_in_path(http: web.Request) -> str:
    return http.match_info["secret"]


MOST_AT_ONCE, MOST_OPEN = 128, 1024
"""Requests of one session that are answered at a time, and that may be open; those between wait with their bodies unread."""
DIALECTS: tuple[type[Dialect], ...] = (ChatCompletions, Responses, AnthropicMessages)
Serve = Callable[[Dialect, AgentSession, web.Request], Awaitable[web.StreamResponse]]


@dataclass(kw_only=True, slots=True)
class SessionRequests:
    """The requests to one session, in the dialects of its URL."""

    session: AgentSession
    dialects: dict[type[Dialect], Dialect] = field(default_factory=lambda: {kind: kind() for kind in DIALECTS})
    num_requests: int = 0
    """Requests that are open."""
    _places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MOST_AT_ONCE))

    async def answer(self, dialect: Dialect, http: web.Request, serve: Serve) -> web.StreamResponse:
        """Serves a request when it is its turn. Raises Refused if too many are open, with a status at which SDKs ask again."""
        if self.num_requests >= MOST_OPEN:
            raise Refused(f"{self.num_requests} requests of this session are open", status=429, code="rate_limit_exceeded")
        self.num_requests += 1
        try:
            async with self._places:
                return await serve(dialect, self.session, http)
        finally:
            self.num_requests -= 1


class Gateway:
    """Serves sessions; `start` it in the event loop whose models they use."""

    def __init__(self, *, prefix: str = PREFIX, secret_of: Callable[[web.Request], str] = _secret_in_path) -> None:
        """`secret_of` finds the session of a request whose path begins with `prefix`."""
        self._prefix, self._secret_of = prefix, secret_of
        self._open: dict[str, SessionRequests] = {}
        self._runner: web.AppRunner | None = None
        self._url = ""

    def app(self) -> web.Application:
        """The routes, for a server of one's own."""
        app, prefix = web.Application(client_max_size=MOST_BODY_BYTES), self._prefix
        app.router.add_get("/health", self._health)
        app.router.add_get(prefix or "/", self._handler(ChatCompletions, _models))  # which Claude Code asks with HEAD
        for start in (f"{prefix}{VERSION}", prefix):
            app.router.add_get(f"{start}/models", self._handler(ChatCompletions, _models))
            app.router.add_get(f"{start}/models/{{id:.+}}", self._handler(ChatCompletions, _models))
            for dialect in DIALECTS:
                app.router.add_post(start + dialect.route.removeprefix(VERSION), self._handler(dialect, _answer))
                if dialect.count_route:
                    app.router.add_post(start + dialect.count_route.removeprefix(VERSION), self._handler(dialect, _count))
            compacting = start + Compacting.route.removeprefix(VERSION)
            app.router.add_post(compacting, self._handler(Responses, _compact))
            kept = f"{start}{Responses.route.removeprefix(VERSION)}/{{id}}"
            app.router.add_get(kept, self._handler(Responses, _kept))
            app.router.add_delete(kept, self._handler(Responses, _forget))
        app.router.add_route("*", f"{prefix}/{{rest:.*}}", self._handler(None, _not_served))
        return app

    async def start(self, host: str = LOOPBACK) -> None:
        """Listens on a free port."""
        self._runner = web.AppRunner(self.app(), access_log=None, handle_signals=False)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, 0, backlog=BACKLOG)
        await site.start()
        port = self._runner.addresses[0][1]
        self._url = f"http://{host}:{port}"

    async def stop(self) -> None:
        """Ends all sessions and closes the port."""
        for opened in list(self._open.values()):
            self.close(opened.session)
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def open(self, session: AgentSession) -> None:
        """Gives a session its URL."""
        session.url = f"{self._url}{self._prefix.format(secret=session.secret)}"
        self._open[session.secret] = SessionRequests(session=session)

    def close(self, session: AgentSession) -> None:
        """Takes its URL away; calls under way are given up."""
        session.end()
        self._open.pop(session.secret, None)

    def _handler(self, kind: type[Dialect] | None, serve: Serve) -> Any:
        """Makes the handler of a route of a protocol; for None, path and headers of each request show its protocol."""

        async def handle(http: web.Request) -> web.StreamResponse:
            opened, spoken = self._open.get(self._secret_of(http)), kind or _spoken(http)
            dialect = opened.dialects[spoken] if opened is not None else spoken()
            try:
                if opened is None:
                    raise Refused("there is no such session, or it is over", code=SESSION_OVER)
                return await opened.answer(dialect, http, serve)
            except Refused as refused:
                if opened is not None:
                    opened.session.refuse(refused)
                return _json(dialect.error(refused), status=refused.status)
            except (ServerError, SampleError) as error:  # the attempt is lost; at 400 agents stop at once
                return _json(dialect.error(Refused(str(error), code=LOST)), status=400)
            except ConnectionError:  # the client has gone, and nobody reads this
                return web.Response()
            except Exception as error:  # a defect of ours: it ends this attempt, with its traceback, and no other
                _fail(opened.session if opened is not None else None, error)
                return _json(dialect.error(Refused(describe(error), code=LOST)), status=400)

        return handle

    async def _health(self, _: web.Request) -> web.Response:
        return _json({"sessions": len(self._open)})


def session_app(session: AgentSession) -> web.Application:
    """An application with this session only, at the same path as behind the listener."""
    gateway = Gateway()
    gateway._open[session.secret] = SessionRequests(session=session)
    return gateway.app()


async def _answer(dialect: Dialect, session: AgentSession, http: web.Request) -> web.StreamResponse:
    body = await _body(http)
    request = dialect.parse(_parsed(body))
    request.caller = http.headers.get(CALLER, "").encode(errors="replace").decode()
    if ROUTING_KEY in http.headers:
        request.notes.append(f"the header {ROUTING_KEY} has no effect: all calls of a session go to one server")
    retried = http.headers.get(RETRY_HEADER, "0") not in ("", "0")
    call = session.call(dialect.route, body, request, retried=retried)
    call.follow(http.transport)
    try:
        if request.stream:
            response = await _stream(dialect, session, http, request, call)
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


async def _compact(dialect: Dialect, session: AgentSession, http: web.Request) -> web.StreamResponse:
    return await _answer(Compacting(cast(Responses, dialect)), session, http)


async def _count(dialect: Dialect, session: AgentSession, http: web.Request) -> web.Response:
    request = dialect.parse(_parsed(await _body(http)))
    return _json(dialect.counted(await session.count(request)))


async def _models(_: Dialect, session: AgentSession, http: web.Request) -> web.Response:
    """The model in the forms of both OpenAI and Anthropic; any name is the session's model."""
    name = http.match_info.get("id", session.model_name)
    model = {"id": name, "object": "model", "type": "model", "created": 0, "owned_by": "vime"}
    model |= {"display_name": session.model_name, "created_at": "1970-01-01T00:00:00Z"}
    if "id" in http.match_info:
        return _json(model)
    return _json({"object": "list", "data": [model], "has_more": False, "first_id": name, "last_id": name})


async def _not_served(dialect: Dialect, session: AgentSession, http: web.Request) -> web.Response:
    """Raises Refused for a request that is not served, with the alternative."""
    asked = f"{http.method} /{http.match_info['rest']}"
    path = http.match_info["rest"].removeprefix(VERSION[1:]).strip("/")
    if http.headers.get("Upgrade", "").lower() == "websocket":  # at this status Codex takes HTTP
        raise Refused(f"{asked}: answers are given over HTTP, not over a WebSocket", status=426, code="websocket_unsupported")
    served = [route.removeprefix(f"{VERSION}/") for kind in DIALECTS for route in (kind.route, kind.count_route) if route]
    if path in served:
        raise Refused(f"{asked} is not served: use POST", status=405, code="method_not_supported")
    why = next((why for part, why in NOT_SERVED.items() if part in path.split("/")), f"a session answers {', '.join(served)}")
    if path.startswith(VERSION[1:]):
        why = f"the base URL of this client is {session.anthropic_url}"
    raise Refused(f"{asked} is not served: {why}", status=404, code="unknown_url")


def _spoken(http: web.Request) -> type[Dialect]:
    """The protocol of a request for a route that is none."""
    is_anthropic = "anthropic-version" in http.headers or "messages" in http.match_info["rest"].split("/")
    return AnthropicMessages if is_anthropic else ChatCompletions


async def _kept(dialect: Dialect, _: AgentSession, http: web.Request) -> web.Response:
    return _json(cast(Responses, dialect).kept(http.match_info["id"]))


async def _forget(dialect: Dialect, _: AgentSession, http: web.Request) -> web.Response:
    return _json(cast(Responses, dialect).forget(http.match_info["id"]))


async def _stream(
    dialect: Dialect, session: AgentSession, http: web.Request, request: ChatRequest, call: PendingCall
) -> web.StreamResponse:
    """Server-sent events while the tokens come. The status line is sent with the first piece, so a refusal still has its own."""
    pieces, events = call.pieces(), dialect.stream(request)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"})

    async def send(found: Iterable[Event]) -> None:
        if not response.prepared:
            await response.prepare(http)
            call.deliver()
            found = [*events.begin(call.usage), *found]
        await response.write(b"".join(map(_event, found)))

    try:
        async for place, delta in pieces:
            await send(events.piece(place, delta))
        await send(events.end(await call.answers()))
    except Exception as error:  # whatever it is: once the stream has begun it can be told only at its end
        if not response.prepared or isinstance(error, ConnectionError):
            raise
        if not isinstance(error, (Refused, ServerError, SampleError)):
            _fail(session, error)
        refused = error if isinstance(error, Refused) else Refused(describe(error), code=LOST)
        session.refuse(refused)
        await response.write(b"".join(map(_event, events.error(refused))))
    await response.write_eof()
    return response


def _fail(session: AgentSession | None, error: Exception) -> None:
    """Notes a defect of ours, within its `except` block: the attempt of the session is lost."""
    logger.exception("a call of a session could not be answered")
    if session is not None:
        session.failure = session.failure or error


def _event(event: Event) -> bytes:
    name, data = event
    payload = data.encode() if isinstance(data, str) else _dumped(data)
    return (f"event: {name}\n".encode() if name else b"") + b"data: " + payload + b"\n\n"


async def _body(http: web.Request) -> bytes:
    """The body, unpacked if it is compressed."""
    try:
        return await http.read()
    except web.HTTPRequestEntityTooLarge:
        raise Refused(f"the body is larger than {MOST_BODY_BYTES} bytes", status=413, code="too_large") from None
    except web.RequestPayloadError as error:
        raise Refused(f"the body cannot be read: {error}") from error


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        found = read_json(body)
    except ValueError as error:
        raise Refused(f"the body cannot be read as JSON: {error}") from error
    if not isinstance(found, dict):
        raise Refused(f"the body must be a JSON object, not {type(found).__name__}")
    return found


def _json(body: dict[str, Any], *, status: int = 200) -> web.Response:
    return web.Response(body=_dumped(body), status=status, content_type="application/json")


def _dumped(body: dict[str, Any]) -> bytes:
    """JSON of any text that a model wrote, including integers beyond 64 bits and halves of surrogate pairs."""
    try:
        return orjson.dumps(body)
    except TypeError:
        return json.dumps(body).encode()
