"""The sessions of one rollout worker: a listener that starts with the first of them, and a reader for each model."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from vime.chat.reply_reader import ReplyReader, parser_key, unread_calls
from vime.chat.served_model import ServedModel
from vime.errors import ConfigError, Problem
from vime.gateway.gateway import Gateway
from vime.gateway.session import AgentSession, Limits
from vime.trajectory.plain_text import control_tokens

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Parsers:
    """The names of vLLM's parsers for one model. Example: `Parsers(tool_parser="hermes", reasoning_parser="qwen3")`."""

    tool_parser: str | None = None
    reasoning_parser: str | None = None


class SessionManager:
    """Opens sessions, in the event loop that uses the models."""

    def __init__(self, parsers: dict[str, Parsers] | None = None) -> None:
        """`parsers` are those of each model by its name; a model without any answers with text alone."""
        self._parsers = parsers or {}
        self._readers: dict[str, asyncio.Task[ReplyReader]] = {}
        self._gateway: asyncio.Task[Gateway] | None = None
        self._noted: set[str] = set()

    @asynccontextmanager
    async def open(
        self,
        model: ServedModel,
        *,
        limits: Limits | None = None,
        fork: bool = True,
        constrains: bool = False,
        refuses: bool = False,
    ) -> AsyncIterator[AgentSession]:
        """A session with a model, which ends with the block."""
        if self._gateway is None:
            self._gateway = asyncio.create_task(_started())
        gateway = await asyncio.shield(self._gateway)
        session = AgentSession(
            model=model,
            reader=await self.reader(model) if model.shows_tokens else None,
            fork=fork,
            limits=limits or Limits(),
            constrains=constrains,
            refuses=refuses,
        )
        gateway.open(session)
        try:
            yield session
        finally:
            gateway.close(session)
            for note in session.notes - self._noted:
                logger.warning("A client of %s: %s", model.name, note)
            self._noted |= session.notes

    async def reader(self, model: ServedModel) -> ReplyReader:
        """The reader of a model. The first one with parsers imports them, which takes seconds.

        Raises ConfigError for parsers that vLLM does not have, or that do not fit the model's tokenizer.
        """
        if model.name not in self._readers:
            load = partial(_reader, model, self._parsers.get(model.name, Parsers()))
            self._readers[model.name] = asyncio.create_task(asyncio.to_thread(load))
        return await asyncio.shield(self._readers[model.name])

    def reads(self, name: str) -> bool:
        """True if parsers are named for a model."""
        return self._parsers.get(name, Parsers()) != Parsers()

    async def stop(self) -> None:
        """Closes the listener, if there is one."""
        if self._gateway is not None:
            await (await self._gateway).stop()
            self._gateway = None


async def _started() -> Gateway:
    gateway = Gateway()
    await gateway.start()
    return gateway


def _reader(model: ServedModel, parsers: Parsers) -> ReplyReader:
    """A reader that knows whether it reads the calls that the model's chat template writes.

    Prompts of the model are encoded fast from now on.
    """
    control_tokens(model.tokenizer).hasten()
    arguments, names = (
        model.template_args(None),
        {"tool_parser": parsers.tool_parser, "reasoning_parser": parsers.reasoning_parser},
    )
    try:
        reader = ReplyReader(model.tokenizer, template_args=arguments, **names)
    except ValueError as error:
        remedy = f"{error}: choose parsers of vLLM that fit the model (vllm serve --tool-call-parser, --reasoning-parser)"
        raise ConfigError([Problem(key=parser_key(model.name), value=parsers.tool_parser, remedy=remedy)]) from error
    if parsers.tool_parser is not None:
        reader.unread = unread_calls(model.tokenizer, arguments, reader)
    return reader
