"""`OpenSession`: a session that can be reached, with what each protocol remembers of it, and how much of it is asked at a time.

A client that floods its session waits in its own line: what it sends beyond the bounds is not read, and is refused in the end.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from aiohttp import web

from vime.chat.request import Refused
from vime.gateway.anthropic_messages import AnthropicMessages
from vime.gateway.chat_completions import ChatCompletions
from vime.gateway.dialect import Dialect
from vime.gateway.responses import Responses
from vime.gateway.session import AgentSession

MOST_AT_ONCE, MOST_OPEN = 128, 1024
"""Requests of one session that are answered at a time, and that may be open; those between wait with their bodies unread."""
DIALECTS: tuple[type[Dialect], ...] = (ChatCompletions, Responses, AnthropicMessages)
Serve = Callable[[Dialect, AgentSession, web.Request], Awaitable[web.StreamResponse]]


@dataclass(kw_only=True, slots=True)
class OpenSession:
    """A session behind its URL."""

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
