"""A client for the HTTP services of tools. A service that does not answer is an infrastructure failure: the rollout is repeated.

If the agent saw the outage instead, the rollout would be trained as if the agent had made a mistake, and the run would go on
without anyone noticing.
"""

import asyncio
import time
from typing import Any

import aiohttp

from vime.errors import ServerError

FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.1, 2.0
PASSING = (408, 425, 429)
"""HTTP statuses, besides 5xx, after which the request is sent again."""
MARGIN_SHARE = 0.1
"""Share of a tool's time limit that is kept back, so that the request fails with its reason before the tool is stopped."""


class Service:
    """A connection pool for all calls of one process, bound to the event loop that calls `post` first."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def post(
        self, address: str, body: dict[str, Any], *, headers: dict[str, str], seconds: float, refusals: tuple[int, ...] = ()
    ) -> Any:
        """The JSON answer of a service; temporary failures are retried for `seconds`, less a margin.

        Raises ValueError for a status among `refusals`, which mean that the query was wrong, and ServerError if there is no
        answer.
        """
        deadline, backoff = time.monotonic() + seconds * (1 - MARGIN_SHARE), FIRST_BACKOFF_SECONDS
        while True:
            try:
                status, text, answer = await self._attempt(address, body, headers, deadline - time.monotonic())
            except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
                status, text, answer = 0, type(error).__name__, None
            if status == 200:
                return answer
            reason = f"{address} answered {status}: {text}" if status else f"{address} gave no answer ({text})"
            if status in refusals:
                raise ValueError(reason)
            passes = status == 0 or status >= 500 or status in PASSING
            if not passes or time.monotonic() + backoff > deadline:
                raise ServerError(reason)
            await asyncio.sleep(backoff)
            backoff = min(2 * backoff, MAX_BACKOFF_SECONDS)

    async def close(self) -> None:
        """Closes the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _attempt(self, address: str, body: dict[str, Any], headers: dict[str, str], seconds: float) -> tuple[int, str, Any]:
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30))
        timeout = aiohttp.ClientTimeout(total=max(0.1, seconds))
        async with self._session.post(address, json=body, headers=headers, timeout=timeout) as response:
            if response.status != 200:
                return response.status, (await response.text(errors="replace"))[:200], None
            return 200, "", await response.json(content_type=None)
