"""The channel of verdicts out of the interpreter that runs the program under test: lines that begin with a nonce.

The nonce is read in a thread of its own before any code of the repository is imported. From then on this thread is inside one
call of C functions that prefix lines of a queue with the nonce and write them. The nonce is on this thread's evaluation stack
only: no variable of a frame, no object with attributes and no file holds it.
"""

import _thread
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable
from itertools import repeat
from operator import add
from queue import SimpleQueue
from types import CodeType

NONCE_BYTES = 32
"""Length of the nonce, with which the program's input begins."""
END = ("end", "", "")


class Channel:
    """Sends lines with the nonce, which cannot be taken back; `accuse` sends lines without one, which need none."""

    __slots__ = ("_lines", "_speakers", "_target", "_write")

    def __init__(self, source: int, target: int) -> None:
        """Reads the nonce from the file descriptor `source`; lines go to `target`."""
        self._lines: SimpleQueue[bytes] = SimpleQueue()
        self._target, self._write = target, os.write
        self._speakers: frozenset[CodeType] = frozenset()
        began = _thread.allocate_lock()
        began.acquire()
        _thread.start_new_thread(_send, (source, target, self._lines.get, began.release))
        began.acquire()

    def admit(self, speakers: Iterable[CodeType]) -> None:
        """Allows only this code to speak from now on; called once, before any code of the repository runs."""
        self._speakers = self._speakers or frozenset(speakers)

    def say(self, kind: str, name: str, value: str) -> None:
        """Sends one line."""
        if self._speakers and sys._getframe(1).f_code not in self._speakers:
            self.accuse("speaks in the place of the tests")
            return
        self._lines.put(ascii((kind, name, value)).encode() + b"\n")

    def end(self) -> None:
        """Says that all tests have been run, and ends the process once this has been sent."""
        if self._speakers and sys._getframe(1).f_code not in self._speakers:
            self.accuse("ends the tests")
            return
        self._lines.put(ascii(END).encode() + b"\n")
        self._lines.put(b"")
        never = _thread.allocate_lock()
        never.acquire()
        never.acquire()

    def accuse(self, what: str) -> None:
        """Says that the program under test has tried something that an honest program does not try."""
        self._write(self._target, b"\n" + ascii(("tampered", what, "")).encode() + b"\n")


def _send(source: int, target: int, get: Callable[[], bytes], release: Callable[[], None]) -> None:
    """Sends lines until an empty one, then ends the process. Nothing between the calls below is Python code."""
    write, leave = os.write, os._exit
    try:
        deque(map(write, repeat(target), map(add, repeat((os.read(source, NONCE_BYTES), release())[0]), iter(get, b""))), 0)
    finally:  # also where the target has been closed
        leave(0)
