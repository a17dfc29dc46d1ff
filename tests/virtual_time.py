"""An event loop whose clock jumps to the next thing that is due: waits cost no time, and durations are exact."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Jumping(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise RuntimeError("everything waits for something that never comes")
        self.now += max(timeout, 0.0)
        return super().select(0)


def run(main: Coroutine[Any, Any, T]) -> tuple[T, float]:
    """The result of a coroutine, and the seconds that it took by its loop's clock."""
    selector = _Jumping()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now
    try:
        return loop.run_until_complete(main), selector.now
    finally:
        loop.close()
