"""The sessions of one rollout worker: a listener that starts with the first of them, and a reader for each model."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from vime.gateway.endpoint_answers import EndpointAnswers
from vime.gateway.limits import Limits
from vime.gateway.reading import Reader
from vime.gateway.sampled_answers import Model, SampledAnswers
from vime.gateway.server import Gateway
from vime.gateway.session import AgentSession

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Parsers:
    """The names of vLLM's parsers for one model. Example: `Parsers(tool_parser="hermes", reasoning_parser="qwen3")`."""

    tool_parser: str | None = None
    reasoning_parser: str | None = None


class Sessions:
    """Opens sessions, in the event loop that uses the models."""

    def __init__(self, parsers: dict[str, Parsers] | None = None) -> None:
        """`parsers` are those of each model by its name; a model without any answers with text alone."""
        self._parsers = parsers or {}
        self._readers: dict[str, asyncio.Task[Reader]] = {}
        self._gateway: asyncio.Task[Gateway] | None = None
        self._noted: set[str] = set()

    @asynccontextmanager
    async def open(
        self, model: Any, *, limits: Limits | None = None, fork: bool = True, constrains: bool = False
    ) -> AsyncIterator[AgentSession]:
        """A session with a model (`ServedModel` or `EndpointModel` of `vime.rollout`), which is over when the block ends."""
        if self._gateway is None:
            self._gateway = asyncio.create_task(_started())
        gateway = await asyncio.shield(self._gateway)
        if model.shows_tokens:
            answers = SampledAnswers(model=model, reader=await self.reader(model), fork=fork)
        else:
            answers = EndpointAnswers(model=model)
        session = AgentSession(answers=answers, limits=limits or Limits(), constrains=constrains)
        gateway.open(session)
        try:
            yield session
        finally:
            gateway.close(session)
            for note in session.notes - self._noted:
                logger.warning("A client of %s: %s", model.name, note)
            self._noted |= session.notes

    async def reader(self, model: Model) -> Reader:
        """The reader of a model. The first one with parsers imports them, which takes seconds."""
        if model.name not in self._readers:
            parsers = self._parsers.get(model.name, Parsers())
            load = partial(
                Reader,
                model.tokenizer,
                tool_parser=parsers.tool_parser,
                reasoning_parser=parsers.reasoning_parser,
                template_args=model.template_args(None),
            )
            self._readers[model.name] = asyncio.create_task(asyncio.to_thread(load))
        return await asyncio.shield(self._readers[model.name])

    async def stop(self) -> None:
        """Closes the listener, if there is one."""
        if self._gateway is not None:
            await (await self._gateway).stop()
            self._gateway = None


async def _started() -> Gateway:
    gateway = Gateway()
    await gateway.start()
    return gateway
