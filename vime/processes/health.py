"""The health of one program: its process runs and its health check answers.

Further conditions, such as a server's first token, are those of its keeper (`vime.processes.keeper`).
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

import aiohttp

from vime.processes.control import is_healthy
from vime.processes.program import ProgramProcess
from vime.processes.start_signs import StartSigns

POLL_SECONDS = 0.2
START_CHECK_SECONDS = 2.0

Fault = tuple[str, str]
"""A name for the fault in one word, and its details."""


class Health:
    """Watches one program: waits until it has started, and afterwards until it is lost."""

    def __init__(self, process: ProgramProcess, http: aiohttp.ClientSession) -> None:
        self._process, self._http = process, http

    async def until_started(self, has_started: Callable[[], Awaitable[bool]]) -> Fault | None:
        """Waits after a launch until the program is healthy and `has_started` is true.

        Returns the fault if the program ended, showed no sign of progress for too long, or took too long in all; otherwise None.
        """
        spec, started = self._process.spec, time.monotonic()
        silence_limit, limit = spec.settings.start_timeout_seconds, spec.settings.max_start_seconds
        signs = StartSigns(spec.log, hub_id=spec.hub_id)
        while True:
            if self._process.exit_code() is not None:
                return "died", f"while starting, {self._process.ending()}"
            if await self._is_healthy(START_CHECK_SECONDS) and await has_started():
                return None
            taken = time.monotonic() - started
            if signs.silent_seconds() > silence_limit:
                return "hung", f"no sign of progress for {silence_limit:.0f} s of its start; {signs.describe()}"
            if taken > limit:
                return "hung", f"not healthy after {taken:.0f} s; {signs.describe()}"
            await asyncio.sleep(POLL_SECONDS)

    async def until_lost(self) -> Fault:
        """Waits until the process ends or `health_failures` checks in a row fail; returns which of the two."""
        settings, failures, next_check = self._process.spec.settings, 0, 0.0
        while failures < settings.health_failures:
            if self._process.exit_code() is not None:
                return "died", self._process.ending()
            if time.monotonic() >= next_check:
                healthy = await self._is_healthy(max(1.0, settings.health_interval_seconds))
                failures = 0 if healthy else failures + 1
                next_check = time.monotonic() + settings.health_interval_seconds
            await asyncio.sleep(POLL_SECONDS)
        return "hung", f"{failures} health checks in a row failed{self._process.want_of_memory()}"

    async def _is_healthy(self, timeout_seconds: float) -> bool:
        spec = self._process.spec
        return await is_healthy(self._http, spec.url + spec.health_path, timeout_seconds=timeout_seconds)
