"""Token in, token out: the client of one served model, for many requests at once in one event loop.

`generate` continues a prompt, `score` gives the logprobs of a finished sequence. Replies are streamed, so a request times out
when its server is silent, however long the reply is; after a loss the request is continued from the tokens received, by another
server or the restarted one. A dropped connection is retried at once, a lost server until `recovery_timeout_seconds`, and a bad
request never. The address of a restarted server is asked of the actor that keeps it.
"""

import asyncio
import contextlib
import itertools
import logging
import random
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import numpy as np
import orjson

from vime.config import ServingConfig
from vime.errors import BadRequestError, ContextFullError, ServerError, describe
from vime.processes.control import UNREACHABLE
from vime.processes.secret import headers
from vime.serving.calls import Calls
from vime.serving.endpoint import Endpoint, locate
from vime.serving.reply import Listener, Reply, StreamError, TooOld
from vime.serving.scores import Scores
from vime.serving.silence import Silence, Silent
from vime.types import Integers, Turn
from vime.weights.payload import ADAPTER

__all__ = ["BadRequestError", "Listener", "TokenClient"]

logger = logging.getLogger(__name__)

FIRST_BACKOFF_SECONDS = 0.1
MAX_BACKOFF_SECONDS = 2.0
NUM_IMMEDIATE_RETRIES = 3
FAREWELL_SECONDS = 10.0
REFUSED = (400, 404, 413, 422)
"""Status of a request that cannot work, also of one whose stream had begun."""
DATA, LAST_EVENT = b"data: ", b"data: [DONE]"
JSON, OPTIONS = "application/json", orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


class _Unavailable(Exception):
    """This attempt failed for a temporary reason."""


LOST = (TooOld, StreamError, Silent, _Unavailable, aiohttp.ClientError, asyncio.TimeoutError, OSError)
"""Exceptions of an attempt that failed for a temporary reason."""


def check_room(num_prompt_tokens: int, max_tokens: int, *, max_model_len: int, name: str) -> None:
    """Raises ContextFullError if the reply does not fit behind the prompt, where vLLM would silently cut it off.

    Raises BadRequestError for other requests that cannot work.
    """
    if not num_prompt_tokens:
        raise BadRequestError("the prompt is empty")
    total = num_prompt_tokens + max(max_tokens, 1)
    if total > max_model_len:
        raise ContextFullError(
            f"{num_prompt_tokens} prompt tokens and max_tokens={max_tokens} are {total}, more than max_model_len={max_model_len} "
            f"of {name}",
            name,
        )
    if max_tokens < 1:
        raise BadRequestError(f"max_tokens={max_tokens} asks {name} for no reply")


class TokenClient:
    """Sends token ids to one endpoint. Create one per process and model, inside the event loop that uses it."""

    def __init__(self, endpoint: Endpoint, config: ServingConfig) -> None:
        self.calls = Calls()
        self._endpoint = endpoint
        self._url = endpoint.url
        self._config = config
        self._attempts = itertools.count()
        self._session: aiohttp.ClientSession | None = None
        self._routed: set[str] = set()
        """Sessions that the router counts as load."""
        self._farewells: set[asyncio.Task[None]] = set()

    async def generate(
        self,
        token_ids: Integers,
        *,
        sampling: dict[str, Any],
        session_id: str,
        request_id: str,
        minimum_version: int = 0,
        listener: Listener | None = None,
        experts_from: int | None = None,
    ) -> Turn:
        """The continuation of a prompt, as a turn without prompt and message.

        `sampling` takes vLLM's names (temperature, top_p, max_tokens, seed, …).

        `listener` receives tokens as they arrive. Tokens older than `minimum_version` are discarded and sampled again, because
        their server has not received its weights yet. With `experts_from` the turn has the experts of all tokens from this place
        on that the server has read, if it reports them (`Endpoint.num_experts`). Raises BadRequestError if the request can't
        work, ServerError if no server answered within the recovery timeout.
        """
        check_room(len(token_ids), sampling["max_tokens"], max_model_len=self._endpoint.max_model_len, name=self._endpoint.name)
        if self._endpoint.is_routed:
            self._routed.add(session_id)
        adapter = self._endpoint.adapter
        reply = Reply(
            prompt=token_ids,
            sampling=sampling,
            minimum_version=minimum_version,
            adapter=adapter,
            num_experts=self._endpoint.num_experts,
            experts_from=experts_from,
            listener=listener,
        )
        started, patience = time.monotonic(), _Patience(self, request_id)
        while not reply.finish_reason:
            num_kept = reply.num_tokens
            try:
                await self._attempt(reply, session_id, request_id)
                continue
            except asyncio.CancelledError:
                reply.keep()
                raise
            except LOST as error:
                if reply.finish_reason:  # all of it has come
                    break
                reply.lose(too_old=isinstance(error, TooOld))
                lost = error
            if reply.num_tokens > num_kept:  # it was not lost until now
                patience = _Patience(self, request_id)
            await patience.after(lost)
        self._count(len(token_ids), reply.num_tokens, started)
        return reply.turn()

    async def score(
        self,
        token_ids: Integers,
        *,
        num_likeliest: int = 0,
        session_id: str,
        request_id: str,
        minimum_version: int = 0,
        is_paused: Callable[[], bool] = bool,
    ) -> Scores:
        """The logprobs of all tokens of a sequence but its first, at temperature 1, in one request; nothing is kept of its reply.

        With `num_likeliest` also those of the likeliest tokens in each place. vLLM computes them without its prefix cache. Raises
        as `generate` does; an answer for another sequence than this one, or by weights older than `minimum_version`, is a loss.
        `is_paused` explains the silence of servers that receive weights.
        """
        check_room(len(token_ids), 1, max_model_len=self._endpoint.max_model_len, name=self._endpoint.name)
        if self._endpoint.is_routed:
            self._routed.add(session_id)
        sampling = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": num_likeliest, "detokenize": False}
        adapter = {"extra_args": {ADAPTER: self._endpoint.adapter}} if self._endpoint.adapter is not None else {}
        body = {"token_ids": np.asarray(token_ids, np.int32), "sampling_params": sampling | adapter, "stream": False}
        wanted = {"minimum_version": minimum_version, "adapter": self._endpoint.adapter}
        started, patience = time.monotonic(), _Patience(self, request_id)
        while True:
            try:
                answer = await self._attempt_to_score(body, session_id, request_id, is_paused)
                found = Scores.of(answer, body["token_ids"], num_likeliest=num_likeliest, **wanted)
                break
            except LOST as error:
                lost = error
            await patience.after(lost)
        self._count(len(token_ids), 0, started)
        return found

    def finish(self, session_id: str) -> None:
        """Tells the router, if there is one, that a session has ended and no longer loads its server. Returns at once."""
        if session_id in self._routed and self._session is not None:
            self._routed.remove(session_id)
            task = asyncio.create_task(self._tell_finished(self._session, session_id))
            self._farewells.add(task)
            task.add_done_callback(self._farewells.discard)

    async def close(self) -> None:
        """Closes the connections."""
        await asyncio.gather(*self._farewells)
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _tell_finished(self, session: aiohttp.ClientSession, session_id: str) -> None:
        timeout, query = aiohttp.ClientTimeout(total=FAREWELL_SECONDS), {"session_id": session_id}
        with contextlib.suppress(*UNREACHABLE):  # the router forgets a silent session after a while by itself
            async with session.post(f"{self._url}/finish_session", params=query, timeout=timeout) as response:
                await response.read()  # a router with another policy answers as well, and does nothing

    def _refused(self, request_id: str, reason: Any) -> BadRequestError:
        self.calls.num_failures += 1
        return BadRequestError(f"{self._endpoint.name} refuses {request_id}: {str(reason)[:2000]}")

    def _count(self, num_read: int, num_written: int, started: float) -> None:
        self.calls.num_requests += 1
        self.calls.input_tokens += num_read
        self.calls.output_tokens += num_written
        self.calls.seconds += time.monotonic() - started

    async def _attempt(self, reply: Reply, session_id: str, request_id: str) -> None:
        """Requests the rest of a reply and reads it to its end."""
        # Every attempt has an id of its own: the server may still be at work on the one that was lost.
        body = {"model": self._endpoint.model, "request_id": f"{request_id}-{next(self._attempts)}", **reply.body()}
        if self._config.keep_cache:  # what was started under other weights has its own keys and values
            body["cache_salt"] = f"version {reply.minimum_version}"
        started = time.monotonic()
        is_paused = reply.listener.is_paused if reply.listener is not None else bool
        with Silence(self._config.silence_timeout_seconds, is_explained=is_paused) as silence:
            response = await self._post(body, session_id)
            silence.heard()
            try:
                await self._check_status(response, request_id)
                async for event in _events(response, silence):
                    if "error" in event:
                        if isinstance(event["error"], dict) and event["error"].get("code") in REFUSED:
                            raise self._refused(request_id, event["error"].get("message"))
                        raise StreamError(f"the server ended the stream: {str(event['error'])[:500]}")
                    for choice in event["choices"]:
                        reply.attempt_seconds = time.monotonic() - started
                        reply.add(choice)
                if not reply.finish_reason:
                    raise StreamError("the stream ended before the reply")
            finally:
                if not reply.finish_reason:
                    response.close()  # which tells the server to stop
                response.release()

    async def _attempt_to_score(
        self, body: dict[str, Any], session_id: str, request_id: str, is_paused: Callable[[], bool]
    ) -> bytes:
        """Requests the logprobs of a sequence, whose answer comes in one piece."""
        body = {"model": self._endpoint.model, "request_id": f"{request_id}-{next(self._attempts)}", **body}
        with Silence(self._config.silence_timeout_seconds, is_explained=is_paused):
            async with await self._post(body, session_id) as response:
                await self._check_status(response, request_id)
                return await response.read()

    async def _post(self, body: dict[str, Any], session_id: str) -> aiohttp.ClientResponse:
        if self._session is None:
            self._session = _open_session(self._endpoint.secret)
        data, head = orjson.dumps(body, option=OPTIONS), {"Content-Type": JSON, "x-session-id": session_id}
        return await self._session.post(f"{self._url}/inference/v1/generate", data=data, headers=head)

    async def _check_status(self, response: aiohttp.ClientResponse, request_id: str) -> None:
        if response.status in REFUSED:
            raise self._refused(request_id, await response.text())
        if response.status != 200:
            raise _Unavailable(f"status {response.status}: {(await response.text())[:500]}")

    async def _lost(self, request_id: str, error: BaseException, backoff: float) -> None:
        """Waits before another attempt, which may have to go to another address."""
        logger.debug("%s: trying %s again: %s", self._endpoint.name, request_id, describe(error))
        await asyncio.sleep(backoff * random.uniform(0.5, 1.0))
        self._url = await locate(self._endpoint) or self._url

    def _given_up(self, request_id: str, error: BaseException) -> ServerError:
        self.calls.num_failures += 1
        limit = f"{self._config.recovery_timeout_seconds:.0f} s (serving.recovery_timeout_seconds)"
        where = f"{self._endpoint.name} ({self._url})"
        return ServerError(f"{where} gave no answer to {request_id} within {limit}; last: {describe(error)}")


class _Patience:
    """Waits after attempts of one request that failed for a temporary reason, longer each time, up to the recovery timeout."""

    def __init__(self, client: TokenClient, request_id: str) -> None:
        self._client, self._request_id = client, request_id
        self._found_lost: float | None = None
        self._backoff, self._num_dropped = FIRST_BACKOFF_SECONDS, 0

    async def after(self, error: BaseException) -> None:
        """Returns when it is time for the next attempt. Raises ServerError if there is no time left for one."""
        client = self._client
        client.calls.num_retries += 1
        if isinstance(error, aiohttp.ServerDisconnectedError):
            self._num_dropped += 1
            if self._num_dropped <= NUM_IMMEDIATE_RETRIES:
                return  # an idle connection that the server closed while we took it
        self._found_lost = time.monotonic() if self._found_lost is None else self._found_lost
        if time.monotonic() + self._backoff > self._found_lost + client._config.recovery_timeout_seconds:
            raise client._given_up(self._request_id, error)
        await client._lost(self._request_id, error, self._backoff)
        self._backoff = min(2 * self._backoff, MAX_BACKOFF_SECONDS)


async def _events(response: aiohttp.ClientResponse, silence: Silence) -> AsyncIterator[dict[str, Any]]:
    """The events of a stream, which is read to its end so that its connection can be reused. Comments are signs of life."""
    buffer, lost = b"", None
    while lost is None:
        try:
            data = await response.content.readany()
        except aiohttp.ClientError as error:  # raised also ahead of what came before it and is not read yet
            response.content._exception, lost = None, error
            data = response.content.read_nowait()
        silence.heard()
        *lines, buffer = (buffer + data).split(b"\n\n")
        for line in lines:
            if line.startswith(DATA) and line != LAST_EVENT:
                yield orjson.loads(line[len(DATA) :])
        if not data and lost is None:
            return
    raise lost


def _open_session(secret: str | None) -> aiohttp.ClientSession:
    """A session without limits on connections (the default of 100 would throttle) and on the time of a request."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, limit_per_host=0, keepalive_timeout=60),
        headers=headers(secret),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
        cookie_jar=aiohttp.DummyCookieJar(),
    )
