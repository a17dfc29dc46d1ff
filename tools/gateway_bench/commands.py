"""The commands that a measured side obeys, in lines of JSON."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any


async def obey(commands: dict[str, Callable[..., Awaitable[Any]]]) -> None:
    """Answers each line of standard input, `[name, *arguments]` in JSON, with a line; ends with the input."""
    loop = asyncio.get_running_loop()
    answer({"ready": True})
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        name, *arguments = json.loads(line)
        answer(await commands[name](*arguments))


def answer(found: Any) -> None:
    """Writes a line in JSON."""
    sys.stdout.write(f"{json.dumps(found)}\n")
    sys.stdout.flush()
