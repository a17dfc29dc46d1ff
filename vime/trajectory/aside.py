"""Runs work on long texts and token lists in threads, so that the event loop can serve hundreds of other rollouts meanwhile.

Tokenizers release the interpreter's lock, so their threads run beside the event loop; Python code in such a thread shares the
lock with the event loop, which then waits for a few milliseconds at most.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

SHORT = 1_000
"""Work on at most this many characters or tokens runs in the event loop itself: it takes a millisecond or two."""
SHORT_PROMPT = 6_000
"""Number of characters that can be rendered and tokenized, or parsed as a reply, in the time that `SHORT` allows."""
_threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="tokens")


async def aside(size: int, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Returns `function(*arguments, **named)`, run in a thread if it works on more than `SHORT` characters or tokens (`size`)."""
    return function(*arguments, **named) if size <= SHORT else await in_thread(function, *arguments, **named)


async def in_thread(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Returns `function(*arguments, **named)`, run in a thread."""
    return await asyncio.get_running_loop().run_in_executor(_threads, lambda: function(*arguments, **named))
