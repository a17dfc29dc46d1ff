"""The interception server of PrimeIntellect's verifiers with its training client, as its rollouts use it, in front of an engine.

    python -m gateway_bench.verifiers_side ENGINE_URL TOKENIZER          in an environment with verifiers

It obeys the same commands as `our_side`.
"""

# pyright: reportMissingImports=false
import asyncio
import sys
from contextlib import AsyncExitStack

from renderers import Qwen3RendererConfig
from verifiers.v1.clients import ModelContext
from verifiers.v1.configs.agent import AgentConfig
from verifiers.v1.configs.client import TrainClientConfig
from verifiers.v1.interception.server import InterceptionServer
from verifiers.v1.session import RolloutSession
from verifiers.v1.task import TaskData
from verifiers.v1.trace import AgentInfo, Trace, TraceTask

from gateway_bench.commands import obey
from gateway_bench.script import MODEL


class VerifiersSide:
    """Sessions of one interception server."""

    def __init__(self, server: InterceptionServer, engine_url: str, tokenizer: str) -> None:
        self._server = server
        client = TrainClientConfig(
            base_url=f"{engine_url}/v1", api_key_var="NONE", renderer=Qwen3RendererConfig(), renderer_model_name=tokenizer
        )
        self._context = ModelContext(model=MODEL, client=client)
        self._open = AsyncExitStack()
        self._sessions: list[RolloutSession] = []

    async def open(self, count: int) -> list[dict[str, str]]:
        """Opens `count` sessions."""
        found: list[dict[str, str]] = []
        for _ in range(count):
            session = RolloutSession(ctx=self._context, trace=make_trace())
            self._sessions.append(session)
            url, key, _ = await self._open.enter_async_context(self._server.acquire(session))
            found.append({"url": f"{url}/v1", "key": key})
        return found

    async def close(self) -> dict[str, float]:
        """Closes the sessions, and counts their content."""
        calls = sum(len(session.trace.calls) for session in self._sessions)
        sequences = sum(len(session.trace.branches) for session in self._sessions)
        self._sessions = []
        await self._open.aclose()
        self._open = AsyncExitStack()
        return {"calls": calls, "sequences": sequences}


def make_trace() -> Trace:
    """An empty trace of a task without anything."""
    return Trace(task=TraceTask(type="Task", data=TaskData()), agent=AgentInfo(config=AgentConfig()))


async def serve(engine_url: str, tokenizer: str) -> None:
    """Obeys until its input ends."""
    async with InterceptionServer() as server:
        side = VerifiersSide(server, engine_url, tokenizer)
        await obey({"open": side.open, "close": side.close})


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:]))  # the event loop that verifiers itself uses
