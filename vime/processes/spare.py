"""`Spare`: what an ended run leaves to the next one of the same driver, so that it starts in seconds.

A part that is left has a kind and a key. The next run takes over those whose key is what it would start itself, and ends the
others before it starts its own.
"""

from collections.abc import Awaitable, Callable
from typing import Any

End = Callable[[], Awaitable[None]]


class Spare:
    """The parts that are left. Example: `spare.put("server", key, server, end=server.stop)`, and `spare.take("server", key)`."""

    def __init__(self, *, keeps: bool = False) -> None:
        """Unless it `keeps` parts, none is ever left."""
        self.keeps = keeps
        self._parts: dict[tuple[str, str], tuple[Any, End]] = {}

    def put(self, kind: str, key: str, part: Any, *, end: End) -> bool:
        """Leaves a part to the next run; `end` will end it if that run has no use for it. Returns False if it is not kept."""
        if self.keeps:
            self._parts[kind, key] = (part, end)
        return self.keeps

    def take(self, kind: str, key: str) -> Any:
        """The part of this kind and key, which is the caller's from now on; None if there is none."""
        part, _ = self._parts.pop((kind, key), (None, None))
        return part

    async def end(self, *kinds: str) -> None:
        """Ends the parts of these kinds that have not been taken; without kinds, all such parts."""
        for kind, key in [name for name in self._parts if not kinds or name[0] in kinds]:
            _, end = self._parts.pop((kind, key))
            await end()
