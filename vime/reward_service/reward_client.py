"""Sends batches to a reward service: within its limits, again after temporary failures, and each for a limited time."""

import asyncio
import os
import random
import time
from typing import Any

import aiohttp

from vime.config import RewardServiceConfig
from vime.errors import RewardServiceError, RewardServiceTimeout
from vime.processes.control import UNREACHABLE
from vime.reward_service.wire_format import read_answer
from vime.serving.external import FIRST_BACKOFF_SECONDS, RETRIED, bearer, retry_after, without_key
from vime.types import Reward

MAX_BACKOFF_SECONDS = 5.0
"""The longest wait between two attempts that the client chooses itself; the service may ask for a longer one."""
MAX_RETRY_AFTER_SECONDS = 300.0
CONNECT_SECONDS = 10.0
MAX_ANSWER_BYTES = 16 * 2**20


class RewardClient:
    """The client of one process; `share` is the part of the requests per minute that this process may send.

    Example: `await RewardClient(config).score([item, item])` is `[Reward(score=1.0), RewardServiceError("…")]`.
    """

    def __init__(self, config: RewardServiceConfig, *, share: float = 1.0) -> None:
        assert config.url is not None, config
        self._config, self._url = config, config.url
        self._key = _key(config)
        rate = config.max_requests_per_minute
        self._seconds_apart = 60.0 / (rate * share) if rate is not None else 0.0
        self._next_start = self._paused_until = 0.0
        self._http: aiohttp.ClientSession | None = None

    async def score(self, items: list[dict[str, Any]]) -> list[Reward | RewardServiceError]:
        """A reward or an error for each item.

        Raises RewardServiceTimeout if the last of all attempts took too long, RewardServiceError if it failed otherwise.
        """
        body = {"items": [{"id": number, **item} for number, item in enumerate(items)]}
        error = RewardServiceError("the reward service was not asked")
        for attempt in range(self._config.max_retries + 1):
            if attempt:
                await asyncio.sleep(
                    min(FIRST_BACKOFF_SECONDS * 2 ** (attempt - 1), MAX_BACKOFF_SECONDS) * random.uniform(0.5, 1.0)
                )
            try:
                await self._until_next_start()
                return read_answer(await self._attempt(body), num_items=len(items))
            except _Passing as passing:
                error = passing.error
        attempts = f" (attempt {self._config.max_retries + 1}, the last)"
        raise type(error)(f"{error}{attempts}")

    async def close(self) -> None:
        """Closes the connections."""
        if self._http is not None:
            await self._http.close()
            self._http = None

    async def _until_next_start(self) -> None:
        """Waits so that requests start at even intervals, within the limit per minute, and not during a pause of the service."""
        start = max(self._next_start, time.monotonic())
        self._next_start = start + self._seconds_apart
        await asyncio.sleep(start - time.monotonic())
        while (pause := self._paused_until - time.monotonic()) > 0:
            await asyncio.sleep(pause)

    async def _attempt(self, body: dict[str, Any]) -> str:
        """The text of an answer with status 200."""
        seconds = self._config.request_timeout_seconds
        if self._http is None:
            timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=min(CONNECT_SECONDS, seconds))
            self._http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout)
        try:
            headers = bearer(self._key)
            async with self._http.post(self._url, json=body, headers=headers, allow_redirects=False) as response:
                text = await _text(response)
                status, wait = response.status, retry_after(response.headers.get("retry-after"))
        except TimeoutError:
            limit = f"reward_service.request_timeout_seconds={seconds:g}"
            raise _Passing(RewardServiceTimeout(f"the reward service gave no answer within {limit}")) from None
        except UNREACHABLE as error:
            # neither its repr nor its traceback: they may show the headers of the request
            shown = without_key(self._key, f"{type(error).__name__}: {error}".removesuffix(": "))
            raise _Passing(RewardServiceError(f"the reward service cannot be reached: {shown}")) from None
        if status == 200:
            return without_key(self._key, text, most=None)
        error = RewardServiceError(f"the reward service answers with status {status}: {without_key(self._key, text)}")
        if status not in RETRIED and status < 500:
            raise error
        self._paused_until = max(self._paused_until, time.monotonic() + min(wait, MAX_RETRY_AFTER_SECONDS))
        raise _Passing(error)


async def _text(response: aiohttp.ClientResponse) -> str:
    """The body. Raises RewardServiceError if it is longer than `MAX_ANSWER_BYTES`."""
    body = b""
    async for chunk in response.content.iter_chunked(2**16):
        body += chunk
        if len(body) > MAX_ANSWER_BYTES:
            raise RewardServiceError(f"the reward service answers with more than {MAX_ANSWER_BYTES} bytes")
    return body.decode(errors="replace")


class _Passing(Exception):
    """An attempt failed for a temporary reason."""

    def __init__(self, error: RewardServiceError) -> None:
        super().__init__(str(error))
        self.error = error


def _key(config: RewardServiceConfig) -> str | None:
    variable = config.api_key_variable
    if variable is None:
        return None
    if not (key := os.environ.get(variable)):
        raise RewardServiceError(f"the reward service needs the environment variable {variable}, which is not set on this node")
    return key
