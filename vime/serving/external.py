"""Servers that the run does not start: whether they answer, and the client of those with OpenAI's chat API.

Written on aiohttp like the token client: the `openai` package takes several times as long per call.
"""

import asyncio
import json
import os
import random
import time
from dataclasses import replace
from typing import Any

import aiohttp

from vime.config import ServingConfig
from vime.errors import BadRequestError, ContextFullError, ServerError
from vime.processes.control import UNREACHABLE, is_healthy
from vime.serving.calls import Calls
from vime.serving.endpoint import Endpoint
from vime.surroundings import proxy_of
from vime.types import Message, Turn

FIRST_BACKOFF_SECONDS = 0.5
MAX_BACKOFF_SECONDS = 30.0
POLL_SECONDS = 0.5
CHECK_SECONDS = 10.0
RETRIED = (408, 409, 425, 429)
"""Statuses below 500 after which another attempt may succeed."""
CONTEXT_FULL = ("context_length_exceeded", "maximum context length")
"""OpenAI's error code for a prompt that is too long, and the message of servers without such a code (vLLM's)."""
ERROR_CHARACTERS = 1000


class _Passing(Exception):
    """An attempt failed for a temporary reason; `wait_seconds` is the wait that the endpoint asked for."""

    def __init__(self, reason: str, *, wait_seconds: float = 0.0) -> None:
        super().__init__(reason)
        self.wait_seconds = wait_seconds


class ChatClient:
    """Sends conversations to one endpoint, within its limits; make one per process and model, inside its event loop."""

    def __init__(self, endpoint: Endpoint, config: ServingConfig) -> None:
        assert endpoint.chat is not None, endpoint
        self.calls = Calls()
        self._endpoint, self._chat = endpoint, endpoint.chat
        self._key = _key(endpoint)
        self._slots = asyncio.Semaphore(self._chat.max_concurrent_requests)
        self._next_start = 0.0
        self._http: aiohttp.ClientSession | None = None

    async def chat(
        self,
        messages: list[Message],
        *,
        max_tokens: int,
        tools: list[dict[str, Any]] | None = None,
        sampling: dict[str, float] | None = None,
    ) -> Turn:
        """The reply to a conversation, without tokens; `chat.body` wins over `sampling`.

        Its `seconds` are those of the attempt that was answered, without the wait for its turn among the others.

        Raises BadRequestError if the endpoint refuses it, ContextFullError for its length, and ServerError if it gave no answer
        in `max_retries` new attempts.
        """
        body = {"model": self._endpoint.model, "messages": messages, "max_tokens": max_tokens, "tools": tools}
        body |= {**(sampling or {}), **self._chat.body}
        body = {key: value for key, value in body.items() if value is not None}
        started, backoff, reason = time.monotonic(), FIRST_BACKOFF_SECONDS, ""
        for attempt in range(self._chat.max_retries + 1):
            if attempt:
                self.calls.num_retries += 1
            wait_seconds = 0.0
            try:
                async with self._slots:
                    await self._until_next_start()
                    reply = await self._attempt(body)
                self._count(reply, started)
                return reply
            except _Passing as error:
                reason, wait_seconds = str(error), error.wait_seconds
            except UNREACHABLE as error:
                # not its repr, which has the request's headers
                reason = without_key(self._key, f"{type(error).__name__}: {error}".removesuffix(": "))
            except BadRequestError:
                self.calls.num_failures += 1
                raise
            if attempt < self._chat.max_retries:
                await asyncio.sleep(min(max(wait_seconds, backoff * random.uniform(0.5, 1.0)), MAX_BACKOFF_SECONDS))
                backoff *= 2
        self.calls.num_failures += 1
        raise ServerError(
            f"{self._endpoint.name} ({self._endpoint.url}) gave no answer in {self._chat.max_retries + 1} attempts "
            f"(serving.models.{self._endpoint.name}.chat.max_retries); last: {reason}"
        )

    async def close(self) -> None:
        """Closes the connections."""
        if self._http is not None:
            await self._http.close()
            self._http = None

    async def _until_next_start(self) -> None:
        """Waits so that requests start at even intervals and stay within the rate limit."""
        if self._chat.max_requests_per_minute is None:
            return
        start = max(self._next_start, time.monotonic())
        self._next_start = start + 60.0 / self._chat.max_requests_per_minute
        await asyncio.sleep(start - time.monotonic())

    async def _attempt(self, body: dict[str, Any]) -> Turn:
        if self._http is None:
            timeout = aiohttp.ClientTimeout(total=self._chat.request_timeout_seconds, sock_connect=CHECK_SECONDS)
            connector = aiohttp.TCPConnector(limit=0)
            self._http = aiohttp.ClientSession(connector=connector, timeout=timeout, proxy=proxy_of(self._endpoint.url))
        url, started = f"{self._endpoint.url}/chat/completions", time.monotonic()
        async with self._http.post(url, json=body, headers=bearer(self._key)) as response:
            answer = await response.text(errors="replace")
            if response.status == 200 and (reply := _read(answer)) is not None:
                return replace(reply, seconds=time.monotonic() - started)
            status = f"status {response.status}{' without a reply' if response.status == 200 else ''}"
            text = f"{status}: {without_key(self._key, answer)}"
            if response.status == 200 or response.status in RETRIED or response.status >= 500:
                raise _Passing(text, wait_seconds=retry_after(response.headers.get("retry-after")))
            is_full = any(words in answer for words in CONTEXT_FULL)
            text = f"{self._endpoint.name} refuses a request: {text}"
            raise ContextFullError(text, self._endpoint.name) if is_full else BadRequestError(text)

    def _count(self, reply: Turn, started: float) -> None:
        assert reply.usage is not None, reply
        read, written = reply.usage
        prices = self._chat.dollars_per_million_input_tokens, self._chat.dollars_per_million_output_tokens
        self.calls.num_requests += 1
        self.calls.input_tokens += read
        self.calls.output_tokens += written
        self.calls.seconds += time.monotonic() - started
        self.calls.dollars += (read * prices[0] + written * prices[1]) / 1e6


async def until_answering(endpoint: Endpoint, *, timeout_seconds: float) -> None:
    """Waits for servers that the run does not start.

    Raises ServerError if one does not answer in time, or refuses the key.
    """
    deadline = time.monotonic() + timeout_seconds
    async with aiohttp.ClientSession(proxy=proxy_of(endpoint.url) if endpoint.chat else None) as http:
        for url in endpoint.worker_urls:
            while not (
                await _takes_key(http, endpoint)
                if endpoint.chat
                else await is_healthy(http, f"{url}/health", timeout_seconds=CHECK_SECONDS)
            ):
                if time.monotonic() > deadline:
                    raise ServerError(
                        f"{endpoint.name}: {url} does not answer; start it, or correct serving.models.{endpoint.name}.urls"
                    )
                await asyncio.sleep(POLL_SECONDS)


async def _takes_key(http: aiohttp.ClientSession, endpoint: Endpoint) -> bool:
    """True if a chat endpoint answers at all; raises ServerError if it refuses the key."""
    timeout = aiohttp.ClientTimeout(total=CHECK_SECONDS)
    try:
        async with http.get(f"{endpoint.url}/models", headers=bearer(_key(endpoint)), timeout=timeout) as response:
            status = response.status
    except UNREACHABLE:
        return False
    if status in (401, 403):
        variable = endpoint.chat.api_key_variable if endpoint.chat else None
        raise ServerError(
            f"{endpoint.name} ({endpoint.url}) refuses the key (status {status}): set another in the environment variable "
            f"{variable or f'that serving.models.{endpoint.name}.chat.api_key_variable names'}"
        )
    return status < 500  # a list of models is not part of every such API


def _key(endpoint: Endpoint) -> str | None:
    variable = endpoint.chat.api_key_variable if endpoint.chat else None
    if variable is None:
        return None
    if not (key := os.environ.get(variable)):
        raise ServerError(f"{endpoint.name}: the environment variable {variable} is not set on this node")
    return key


def _read(answer: str) -> Turn | None:
    """The reply in an answer with status 200; None without one: some gateways send an error or a page with this status."""
    try:
        found = json.loads(answer)
        choice, usage = found["choices"][0], found.get("usage") or {}
        message = {"content": "", **{key: value for key, value in choice["message"].items() if value is not None}}
        tokens = int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0)
        reply = Turn(message=message, finish_reason=choice.get("finish_reason") or "stop", usage=tokens)
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
    return None if found.get("error") else reply


def bearer(key: str | None) -> dict[str, str]:
    """The headers of a request with a key."""
    return {"Authorization": f"Bearer {key}"} if key else {}


def without_key(key: str | None, text: str, *, most: int | None = ERROR_CHARACTERS) -> str:
    """A text without the key, which answers and errors may repeat."""
    return (text.replace(key, "…") if key else text)[:most]


def retry_after(header: str | None) -> float:
    """Seconds of the header Retry-After; its other form, a date, is not read."""
    try:
        return max(0.0, float(header or 0))
    except ValueError:
        return 0.0
