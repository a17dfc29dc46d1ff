"""The memory that a run takes at its peak: that of this process and of all processes that it started."""

import threading
from types import TracebackType

import psutil

INTERVAL_SECONDS = 2.0


class PeakMemory:
    """Measures within a `with` block; memory that several processes share is divided among them."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._measure, daemon=True)

    def __enter__(self) -> "PeakMemory":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()

    def _measure(self) -> None:
        own = psutil.Process()
        while not self._ended.wait(INTERVAL_SECONDS):
            self.peak_bytes = max(self.peak_bytes, sum(map(_bytes_of, [own, *own.children(recursive=True)])))


def _bytes_of(process: psutil.Process) -> int:
    try:
        return process.memory_full_info().pss
    except psutil.Error:  # it has ended
        return 0
