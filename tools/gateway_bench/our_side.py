"""vime's gateway as a rollout worker runs it, with its token client in front of an engine.

python -m gateway_bench.our_side ENGINE_URL TOKENIZER MAX_MODEL_LEN [TOOL_PARSER REASONING_PARSER]

`["open", 64]` opens sessions and answers with their URLs and keys, `["close"]` closes them and answers with counts of their
content.
"""

import gc
import sys
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import uvloop

from gateway_bench.commands import obey
from gateway_bench.script import MODEL
from vime.config import RunConfig
from vime.gateway.session import AgentSession
from vime.preflight.compose import compose_run
from vime.serving.endpoint import Endpoint
from vime.types import Sample, Sampling
from vime.workers.served import ServedModels


class OurSide:
    """The sessions of one worker."""

    def __init__(self, config: RunConfig, endpoint: Endpoint) -> None:
        self._models = ServedModels(config, {"actor": endpoint})
        self._open = AsyncExitStack()
        self._sessions: list[AgentSession] = []
        self._number = 0

    async def open(self, count: int) -> list[dict[str, str]]:
        """Opens `count` sessions, each of a rollout of its own."""
        for _ in range(count):
            self._number += 1
            context = self._models.context(f"s{self._number}", sampling=Sampling(temperature=1.0, top_p=1.0), version=0)
            self._sessions.append(await self._open.enter_async_context(context.session("actor")))
        return [{"url": session.openai_url, "key": session.secret} for session in self._sessions[-count:]]

    async def close(self) -> dict[str, float]:
        """Closes the sessions, and counts their content: calls, sequences, and the share of prompt tokens that was tokenized."""
        samples = [session.samples(Sample()) for session in self._sessions if session.counts["calls"]]
        counts = sum([session.statistics() for session in self._sessions], Counter[str]())
        self._sessions = []
        await self._open.aclose()
        self._open = AsyncExitStack()
        counted = {name: counts[name] for name in ("calls", "prompt_tokens", "encoded_tokens")}
        return {"sequences": sum(map(len, samples)), **counted}


async def serve(engine_url: str, tokenizer: str, max_model_len: str, *parsers: str) -> None:
    """Obeys until its input ends."""
    gc.set_threshold(100_000, 50, 100)  # as a rollout worker does
    words: list[Any] = [f"model.{name}={value}" for name, value in zip(("tool_parser", "reasoning_parser"), parsers)]
    config = compose_run(["+method=toolorchestra", *words]).config
    endpoint = Endpoint(
        name="actor",
        url=engine_url,
        worker_urls=(engine_url,),
        model=MODEL,
        tokenizer=tokenizer,
        max_model_len=int(max_model_len),
        trained=True,
    )
    side = OurSide(config, endpoint)
    await obey({"open": side.open, "close": side.close})


if __name__ == "__main__":
    uvloop.run(serve(*sys.argv[1:]))
