"""Work on long texts and long lists of tokens beside the event loop, which answers hundreds of other rollouts meanwhile.

Tokenizers release the interpreter's lock, so a thread of their own holds nobody up; Python code in such a thread shares the lock
with the event loop, which then waits for some milliseconds at most.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

SHORT = 1_000
"""Up to so many characters or tokens the work is done at once: it takes less than a millisecond or two."""
_threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="tokens")


async def aside(size: int, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """`function(*arguments, **named)`; in a thread if `size`, the characters or tokens that it works on, is more than `SHORT`."""
    if size <= SHORT:
        return function(*arguments, **named)
    return await asyncio.get_running_loop().run_in_executor(_threads, lambda: function(*arguments, **named))
