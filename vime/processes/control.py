"""Calls to a program over HTTP: its health check and its control API."""

import asyncio
from typing import Any

import aiohttp

from vime.errors import ServerError

UNREACHABLE = (aiohttp.ClientError, asyncio.TimeoutError, OSError)
"""The errors of a call to a program that is gone or hangs."""


async def is_healthy(http: aiohttp.ClientSession, url: str, *, timeout_seconds: float) -> bool:
    """True if the health check at `url` answers 200 in time."""
    try:
        async with http.get(url, timeout=aiohttp.ClientTimeout(total=timeout_seconds)) as response:
            return response.status == 200
    except UNREACHABLE:
        return False


async def call(
    http: aiohttp.ClientSession, url: str, path: str, *, timeout_seconds: float, body: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Posts to a path of the control API and returns the answer; raises ServerError if its status is not 200."""
    timeout = aiohttp.ClientTimeout(total=timeout_seconds)
    async with http.post(url + path, json=body, timeout=timeout) as response:
        if response.status != 200:
            raise ServerError(f"{url}{path} answered {response.status}: {(await response.text())[:2000]}")
        return await response.json() if response.content_type == "application/json" else {}
