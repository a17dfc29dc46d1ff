"""Reads the output of a command: as much as is to be kept, from its beginning and its end."""

import asyncio
import contextlib
import os
from collections.abc import Callable

from vime.agent.workspace.results import LEFT_OUT

READ_BYTES = 1 << 16
PRINTED = 64
"""Multiple of the kept bytes that a command may write before it is ended."""


class CommandOutput:
    """One stream of a command. `write_end` is handed to the command; the creator of a `CommandOutput` must close it."""

    def __init__(self, *, keep_bytes: int, most_bytes: int, too_long: Callable[[], None]) -> None:
        """Keeps `keep_bytes`, and calls `too_long` once when more than `most_bytes` have been written."""
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        self._first, self._last = bytearray(), bytearray()
        self._half, self._most, self._too_long = keep_bytes // 2, most_bytes, too_long
        self._num_bytes = 0
        self._loop = asyncio.get_running_loop()
        self.ended = self._loop.create_future()
        self._loop.add_reader(self._read_end, self._read)

    @property
    def content(self) -> bytes:
        """The kept bytes, with a line in the middle that says how much was left out."""
        left_out = self._num_bytes - len(self._first) - len(self._last)
        return bytes(self._first) + (LEFT_OUT.format(left_out).encode() if left_out else b"") + bytes(self._last)

    @property
    def text(self) -> str:
        """The kept bytes, as text."""
        return self.content.decode(errors="replace")

    def start(self) -> None:
        """Closes the end that the command has been given."""
        os.close(self.write_end)

    def close(self) -> None:
        """Stops reading."""
        if not self.ended.done():
            self._loop.remove_reader(self._read_end)
            os.close(self._read_end)
            self.ended.set_result(None)

    def drain(self) -> None:
        """Reads all data that have been written by now, and stops reading: something may hold the stream open for good."""
        with contextlib.suppress(BlockingIOError):
            while not self.ended.done() and self._num_bytes <= self._most:
                self._take(os.read(self._read_end, READ_BYTES))
        self.close()

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._take(os.read(self._read_end, READ_BYTES))

    def _take(self, chunk: bytes) -> None:
        if not chunk:
            self.close()
            return
        was_too_long = self._num_bytes > self._most
        self._num_bytes += len(chunk)
        room = self._half - len(self._first)
        if room > 0:
            self._first += chunk[:room]
            chunk = chunk[room:]
        self._last += chunk
        del self._last[: max(0, len(self._last) - self._half)]
        if self._num_bytes > self._most and not was_too_long:
            self._too_long()
