"""Agents that call a gateway, all in one process of their own: each reads files, one call after another.

    python -m gateway_bench.load < SPECIFICATION > MEASURED          both in JSON

With the specification `{"targets": [{"url": "http://…/v1", "key": "…"}, …], "turns": 4}` each target is one agent's.
"""

import asyncio
import json
import random
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import aiohttp
import orjson
import uvloop

from gateway_bench.script import MODEL, TOOLS, opening, results


@dataclass(kw_only=True, slots=True)
class Work:
    """The work of each agent.

    Example: `Work(targets=[{"url": "http://127.0.0.1:8000/v1", "key": "x"}], turns=4, think_seconds=0.5)`.
    """

    targets: list[dict[str, str]]
    turns: int
    first_tokens: int = 1000
    """Size of the first request."""
    new_tokens: int = 200
    """Size of each result of a tool."""
    growth: list[int] = field(default_factory=list)
    """Sizes of results that come before those, to make a history; their calls are made and not measured."""
    spread_seconds: float = 0.0
    """Agents begin at random times within these."""
    think_seconds: float = 0.0
    """Average time that an agent waits for its tool between two calls."""
    stream: bool = False
    tools: bool = True
    max_tokens: int = 256
    seed: int = 0


@dataclass(kw_only=True, slots=True)
class Measured:
    """Measurements; one entry for each measured call, in the order in which they ended."""

    seconds: list[float] = field(default_factory=list)
    """Seconds from each request to the end of its answer."""
    first_at: list[float] = field(default_factory=list)
    """The time when the first text of a stream came, by the machine's monotonic clock; 0 if it is not a stream."""
    first_seconds: list[float] = field(default_factory=list)
    """Seconds from each request to the first text."""
    failures: list[str] = field(default_factory=list)
    """The gateway's answers to agents that it failed; these stopped there."""
    wall_seconds: float = 0.0
    """Seconds from the first request to the last answer."""
    history_tokens: int = 0
    """Tokens of the longest prompt, as its answer reports them."""


class Agents:
    """Agents that call a side at the same time."""

    def __init__(self, work: Work, http: aiohttp.ClientSession) -> None:
        self._work, self._http = work, http
        self.measured = Measured()

    async def run(self) -> None:
        """Runs them side by side to their end."""
        started = time.monotonic()
        await asyncio.gather(*(self._agent(number, target) for number, target in enumerate(self._work.targets)))
        self.measured.wall_seconds = time.monotonic() - started

    async def _agent(self, number: int, target: dict[str, str]) -> None:
        work, source = self._work, random.Random(f"{self._work.seed} {number}")
        messages = opening(source, work.first_tokens)
        await asyncio.sleep(source.uniform(0.0, work.spread_seconds))
        for place in range(len(work.growth) + work.turns):
            is_measured = place >= len(work.growth)
            try:
                reply = await self._call(target, messages, is_measured=is_measured)
            except (RuntimeError, aiohttp.ClientError) as error:
                self.measured.failures.append(f"{type(error).__name__}: {error}"[:300])
                return
            messages.append(reply)
            messages += results(reply, source, work.new_tokens if is_measured else work.growth[place])
            if work.think_seconds:
                await asyncio.sleep(source.uniform(0.0, 2 * work.think_seconds))

    async def _call(self, target: dict[str, str], messages: list[dict[str, Any]], *, is_measured: bool) -> dict[str, Any]:
        """One request; returns the message of its answer."""
        body: dict[str, Any] = {"model": MODEL, "messages": messages, "max_tokens": self._work.max_tokens}
        if self._work.tools:
            body["tools"] = TOOLS
        if self._work.stream:
            body["stream"] = True
        data = orjson.dumps(body)
        headers = {"Authorization": f"Bearer {target['key']}", "Content-Type": "application/json"}
        started = time.monotonic()
        async with self._http.post(f"{target['url']}/chat/completions", data=data, headers=headers) as response:
            if response.status != 200:
                raise RuntimeError(f"{response.status}: {(await response.text())[:2000]}")
            message, first, answer = await (_streamed(response) if self._work.stream else _whole(response))
        if is_measured:
            self.measured.seconds.append(time.monotonic() - started)
            self.measured.first_at.append(first)
            self.measured.first_seconds.append(first - started)
        tokens = (answer.get("usage") or {}).get("prompt_tokens", 0)
        self.measured.history_tokens = max(self.measured.history_tokens, tokens)
        return message


async def _whole(response: aiohttp.ClientResponse) -> tuple[dict[str, Any], float, dict[str, Any]]:
    answer = orjson.loads(await response.read())
    message = answer["choices"][0]["message"]
    kept = ("role", "content", "reasoning_content", "tool_calls")
    return {key: message[key] for key in kept if message.get(key) is not None}, 0.0, answer


async def _streamed(response: aiohttp.ClientResponse) -> tuple[dict[str, Any], float, dict[str, Any]]:
    """The text of a stream as a message, and when its first text came."""
    first, content, reasoning = 0.0, "", ""
    async for line in response.content:
        if not line.startswith(b"data: {"):
            continue
        for choice in orjson.loads(line[len(b"data: ") :])["choices"]:
            delta = choice["delta"]
            if not first and (delta.get("content") or delta.get("reasoning_content")):
                first = time.monotonic()
            content += delta.get("content") or ""
            reasoning += delta.get("reasoning_content") or ""
    return {"role": "assistant", "content": content, **({"reasoning_content": reasoning} if reasoning else {})}, first, {}


async def main() -> None:
    """Reads the specification, runs the agents and writes the measurements."""
    work = Work(**json.load(sys.stdin))
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
        agents = Agents(work, http)
        await agents.run()
    sys.stdout.write(json.dumps(asdict(agents.measured)))


if __name__ == "__main__":
    uvloop.run(main())
