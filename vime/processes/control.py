"""Calls to a program over HTTP: its health, and its control endpoints."""

import asyncio
from typing import Any

import aiohttp

from vime.errors import ServerError

UNREACHABLE = (aiohttp.ClientError, asyncio.TimeoutError, OSError)
"""What a call to a server raises that is gone or hangs."""


async def is_healthy(session: aiohttp.ClientSession, url: str, *, timeout_seconds: float) -> bool:
    """Whether the health endpoint at `url` answers 200 in time."""
    try:
        async with session.get(url, timeout=aiohttp.ClientTimeout(total=timeout_seconds)) as response:
            return response.status == 200
    except UNREACHABLE:
        return False


async def call(
    session: aiohttp.ClientSession, url: str, path: str, *, timeout_seconds: float, body: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Posts to a control endpoint and returns its answer; raises ServerError if that is not 200."""
    timeout = aiohttp.ClientTimeout(total=timeout_seconds)
    async with session.post(url + path, json=body, timeout=timeout) as response:
        if response.status != 200:
            raise ServerError(f"{url}{path} answered {response.status}: {(await response.text())[:2000]}")
        return await response.json() if response.content_type == "application/json" else {}
