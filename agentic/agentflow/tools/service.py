"""A service that tools ask over HTTP. One that does not answer is the infrastructure's fault: the rollout is run again.

What an agent could be told about an outage would be trained as the agent's mistake, and a run would train through it unnoticed.
"""

import asyncio
import time
from typing import Any

import aiohttp

from vime.errors import ServerError

FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.1, 2.0
PASSING = (408, 425, 429)
"""Besides 5xx, the statuses after which the request is sent again."""
MARGIN_SHARE = 0.1
"""Of a tool's time limit, so that this gives up before the tool is stopped, and says why."""


class Service:
    """One pool of connections for all calls of a process; make it in the event loop that uses it, or call `post` there first."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def post(
        self, address: str, body: dict[str, Any], *, headers: dict[str, str], seconds: float, refusals: tuple[int, ...] = ()
    ) -> Any:
        """The JSON answer of a service, asked again after failures that pass, in all for `seconds` less a margin.

        Raises ValueError for a status among `refusals`, which say that the query was wrong, ServerError if there is no answer.
        """
        deadline, backoff = time.monotonic() + seconds * (1 - MARGIN_SHARE), FIRST_BACKOFF_SECONDS
        while True:
            try:
                status, text, answer = await self._attempt(address, body, headers, deadline - time.monotonic())
            except (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError) as error:
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
