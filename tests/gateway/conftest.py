"""Sessions behind a gateway, with Qwen3's tokenizer and a scripted model."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from tests.completing import served_by
from tests.gateway.scripted import Asked, Scripted
from tests.qwen3_tokenizer import qwen3_tokenizer
from vime.chat.reply_reader import ReplyReader
from vime.gateway.gateway import Gateway
from vime.gateway.session import AgentSession
from vime.trajectory.plain_text import control_tokens


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return qwen3_tokenizer()


@pytest.fixture(scope="session")
def reader(tokenizer: Any) -> ReplyReader:
    control_tokens(tokenizer).hasten()  # as a worker does that opens sessions
    return ReplyReader(tokenizer, tool_parser="hermes", reasoning_parser="qwen3")


@pytest_asyncio.fixture
async def gateway() -> AsyncIterator[Gateway]:
    gateway = Gateway()
    await gateway.start()
    yield gateway
    await gateway.stop()


@pytest_asyncio.fixture
async def opened(gateway: Gateway, tokenizer: Any, request: pytest.FixtureRequest) -> AsyncIterator[Callable[..., Asked]]:
    found: list[Asked] = []

    def open_session(
        *replies: str, fork: bool = True, other_reader: ReplyReader | None = None, model: Any = None, **options: Any
    ) -> Asked:
        model = model(tokenizer) if model is not None else Scripted(tokenizer, list(replies))
        reader = other_reader or request.getfixturevalue("reader")  # importing the parsers takes seconds
        session = AgentSession(model=served_by(model), reader=reader, fork=fork, **options)
        gateway.open(session)
        found.append(Asked(session, model))
        return found[-1]

    yield open_session
    for asked in found:
        await asked.close()
