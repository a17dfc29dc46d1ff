"""Whether one program is well: its process runs, its health endpoint answers, and its engine does.

vLLM's `/health` answers also while the engine or a worker is stopped. A call of a worker's empty method passes through API
server, engine and worker, is taken between two steps, and does not queue behind requests; so it shows a hang of any of them.
"""

import asyncio
import time

import aiohttp

from vime.processes.control import UNREACHABLE, is_healthy
from vime.processes.program import Program
from vime.processes.start_signs import StartSigns

POLL_SECONDS = 0.2
START_CHECK_SECONDS = 2.0

Fault = tuple[str, str]
"""What happened, in one word, and what is known about it."""


class Health:
    """The checks of one program."""

    def __init__(self, program: Program, session: aiohttp.ClientSession) -> None:
        self._program, self._session = program, session

    async def until_healthy(self) -> Fault | None:
        """Waits for the health endpoint, and a server's first token, after a launch.

        Says what went wrong if the program ended, showed no sign of progress for too long, or took too long in all.
        """
        spec, started = self._program.spec, time.monotonic()
        signs = StartSigns(spec.log, hub_id=spec.hub_id)
        while True:
            if (code := self._program.exit_code()) is not None:
                return "died", f"while starting, exit code {code}"
            if await self._is_healthy(timeout_seconds=START_CHECK_SECONDS) and await self._has_generated():
                return None
            taken = time.monotonic() - started
            if signs.silent_seconds() > spec.start_timeout_seconds:
                return "hung", f"no sign of progress for {spec.start_timeout_seconds:.0f} s of its start; {signs.describe()}"
            if taken > spec.max_start_seconds:
                return "hung", f"not healthy after {taken:.0f} s; {signs.describe()}"
            await asyncio.sleep(POLL_SECONDS)

    async def until_lost(self) -> Fault:
        """Waits until the process ends, or so many checks in a row fail."""
        spec, failures, next_check = self._program.spec, 0, 0.0
        while failures < spec.health_failures:
            if (code := self._program.exit_code()) is not None:
                return "died", f"exit code {code}"
            if time.monotonic() >= next_check:
                healthy = await self._is_healthy(timeout_seconds=max(1.0, spec.health_interval_seconds))
                failures = 0 if healthy else failures + 1
                next_check = time.monotonic() + spec.health_interval_seconds
            await asyncio.sleep(POLL_SECONDS)
        return "hung", f"{failures} health checks in a row failed"

    async def engine_answers(self) -> bool:
        """False if engine or workers take longer than they may; any other failure shows elsewhere."""
        spec = self._program.spec
        timeout = aiohttp.ClientTimeout(total=spec.engine_timeout_seconds)
        try:
            async with self._session.post(f"{spec.url}/collective_rpc", json={"method": "check_health"}, timeout=timeout):
                return True
        except asyncio.TimeoutError:
            return False
        except (aiohttp.ClientError, OSError):
            return True

    async def _has_generated(self) -> bool:
        """A server's first token, for which it may compile kernels: after that, silence means something."""
        spec = self._program.spec
        if not spec.has_engine:
            return True
        timeout = aiohttp.ClientTimeout(total=spec.start_timeout_seconds)
        body = {"token_ids": [1], "sampling_params": {"max_tokens": 1, "logprobs": 0, "detokenize": False}}
        try:
            async with self._session.post(f"{spec.url}/inference/v1/generate", json=body, timeout=timeout) as response:
                return response.status < 500
        except UNREACHABLE:
            return False

    async def _is_healthy(self, *, timeout_seconds: float) -> bool:
        spec = self._program.spec
        return await is_healthy(self._session, spec.url + spec.health_path, timeout_seconds=timeout_seconds)
