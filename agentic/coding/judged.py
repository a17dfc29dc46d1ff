"""Verdicts of patches that were judged before: the rollouts of a group often end with the same patch.

Only verdicts that the tests themselves gave are kept, not those of limits, which another moment might not reach.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from agentic.coding.verdict import Verdict

KEPT_REASONS = frozenset({"solved", "tests_failed", "not_run", "tests_not_placed", "patch_failed", "patch_refused"})
MOST_KEPT = 4096


class Judged:
    """Verdicts of one process by task and patch; equal patches that are judged at the same time wait for one verdict."""

    def __init__(self) -> None:
        self._found: OrderedDict[bytes, Verdict] = OrderedDict()
        self._locks: dict[bytes, asyncio.Lock] = {}

    async def verdict(self, key: bytes, judge: Callable[[], Awaitable[Verdict]]) -> Verdict:
        """The verdict of a key, which `judge` finds if it is not known."""
        lock = self._locks.setdefault(key, asyncio.Lock())
        try:
            async with lock:
                if key in self._found:
                    self._found.move_to_end(key)
                    return self._found[key]
                verdict = await judge()
                if verdict.reason in KEPT_REASONS:
                    self._found[key] = verdict
                while len(self._found) > MOST_KEPT:
                    self._found.popitem(last=False)
                return verdict
        finally:
            if not lock.locked():
                self._locks.pop(key, None)


def key_of(*parts: str) -> bytes:
    """A digest of several texts, in which the boundaries between the texts count."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part.encode(errors="surrogateescape")
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.digest()
