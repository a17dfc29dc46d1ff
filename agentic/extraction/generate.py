"""Runs the agents of `agents/` in processes of their libraries' environments, which live on, since imports take long."""

import asyncio
import os
import subprocess
from pathlib import Path
from typing import Any

import orjson

from vime.agent.command import inherited
from vime.rollout.context import Context, Sampling
from vime.types import Sample

AGENTS = Path(__file__).parent / "agents"
ENVIRONMENTS = Path.home() / ".cache" / "vime" / "clients"
MOST_BYTES = 2**20
MOST_PROCESSES = 12
"""The limit on processes of each agent in a rollout worker; each has the memory of its library."""


class AgentProcesses:
    """Processes of one agent; each answers one question at a time."""

    def __init__(self, module: str, environment: str) -> None:
        self._module, self._environment = module, environment
        self._idle: list[asyncio.subprocess.Process] = []
        self._free = asyncio.Semaphore(MOST_PROCESSES)

    async def generate(self, context: Context, sample: Sample, sampling: Sampling) -> list[Sample]:
        """One rollout. Raises an error if the agent failed; it is `malformed` if a reply lacked the form that it asked for."""
        async with context.session() as session:
            request = {"url": session.openai_url, "key": session.secret, "question": sample.question}
            async with self._free:
                found = await self._ask(request)
            if "error" in found:
                raise RuntimeError(found["error"])
        return session.samples(sample, output=found["answer"])

    async def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        process = self._idle.pop() if self._idle else await self._start()
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(orjson.dumps(request) + b"\n")
            line = await process.stdout.readline()
            found = orjson.loads(line)
        except BaseException:  # cancelled in the middle as well: its next line would answer this question
            process.kill()
            raise
        self._idle.append(process)
        return found

    async def _start(self) -> asyncio.subprocess.Process:
        python = os.environ.get(f"VIME_{self._module.upper()}_PYTHON") or str(ENVIRONMENTS / self._environment / "bin" / "python")
        return await asyncio.create_subprocess_exec(
            python,
            str(AGENTS / "serve.py"),
            self._module,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=inherited(),
            limit=MOST_BYTES,
        )


pydantic_ai = AgentProcesses("pydantic_ai_agent", "pydantic-ai-slim-2.66.0").generate
smolagents = AgentProcesses("smolagents_agent", "smolagents-1.26.0").generate
