"""Events of a program that a fake device sees: host synchronizations, copies, collectives and memory, each with its line."""

import sys
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

GIB = 2**30
ROOT = str(Path(__file__).parents[2]) + "/"
OURS = f"{ROOT}vime/"
OUTSIDE = ("/megatron/core/", "/torch/optim/", "/vllm/")
"""Libraries whose lines are named where they are nearer than ours; wrappers that each call goes through are not."""
WRAPPERS = ("/megatron/core/utils.py",)


def where() -> str:
    """The innermost line of vime, Megatron, vLLM or PyTorch's optimizers at work, for example `vime/trainer/step.py:85`."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(OURS):
            return f"{file.removeprefix(ROOT)}:{frame.f_lineno}"
        if not file.endswith(WRAPPERS):
            for folder in OUTSIDE:
                _, found, rest = file.partition(folder)
                if found:
                    return f"{folder[1:]}{rest}:{frame.f_lineno}"
        frame = frame.f_back
    return "elsewhere"


@dataclass(slots=True)
class Memory:
    """Bytes of the storages of tensors on the device: those alive now, and the most since `restart`.

    Two tensors that share a storage count once, and a storage that was resized counts with its new size. What an allocator wastes
    between them is not counted.
    """

    live: int = 0
    peak: int = 0
    peak_at: str = ""
    """The line at which the peak was reached."""
    _sizes: dict[int, int] = field(default_factory=dict)
    _depth: int = 0

    def restart(self) -> None:
        """Forgets the peak."""
        self.peak, self.peak_at = self.live, ""

    def note(self, storage: torch.UntypedStorage) -> None:
        """Counts a storage from now until it is freed."""
        key, size = storage._cdata, storage.nbytes()
        if key not in self._sizes and size and not self._depth:
            weakref.finalize(storage, self._forget, key).atexit = False
            self._change(key, size)

    def of_results(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that would be compiled: it runs as the single operations that it is written in, and its results count."""

        def call(*args: Any, **kwargs: Any) -> Any:
            self._depth += 1
            try:
                results = function(*args, **kwargs)
            finally:
                self._depth -= 1
            for tensor in results if isinstance(results, tuple) else (results,):
                if isinstance(tensor, torch.Tensor):
                    self.note(tensor.untyped_storage())
            return results

        return call

    def resized(self, storage: torch.UntypedStorage) -> None:
        """Counts a storage, which `note` has seen, with its present size."""
        if storage._cdata in self._sizes:
            self._change(storage._cdata, storage.nbytes())

    def _change(self, key: int, size: int) -> None:
        self.live += size - self._sizes.get(key, 0)
        self._sizes[key] = size
        if self.live > self.peak:
            self.peak, self.peak_at = self.live, where()

    def _forget(self, key: int) -> None:
        self.live -= self._sizes.pop(key)


@dataclass(slots=True)
class Counts:
    """Everything that happened since `restart`, by line; `problems` are what a real device or NCCL would refuse.

    Example: `synchronizations == {"vime/trainer/metrics.py:19": 9}`.
    """

    synchronizations: Counter[str] = field(default_factory=Counter)
    """The host waits for the device: a value is read, an output's size depends on values, a tensor is copied to the host."""
    copies_to_device: Counter[str] = field(default_factory=Counter)
    blocking_copies: Counter[str] = field(default_factory=Counter)
    """Copies to the device that are not `non_blocking`: PyTorch waits for the stream behind each (`memcpy_and_sync`)."""
    collectives: Counter[str] = field(default_factory=Counter)
    """By kind and line, for example `all_reduce megatron/core/tensor_parallel/mappings.py:30`."""
    problems: Counter[str] = field(default_factory=Counter)
    pinned: list[int] = field(default_factory=list)
    """Sizes of page-locked blocks of host memory that were taken."""
    memory: Memory = field(default_factory=Memory)

    def restart(self) -> None:
        """Forgets everything but the memory that is in use."""
        for counter in (self.synchronizations, self.copies_to_device, self.blocking_copies, self.collectives, self.problems):
            counter.clear()
        self.pinned.clear()
        self.memory.restart()


COUNTS = Counts()
"""The counts of this process, in which there is one device."""


def waits(what: str = "") -> None:
    """Counts a host synchronization at the present line."""
    COUNTS.synchronizations[f"{where()}{what and f' ({what})'}"] += 1


def refused(what: str) -> None:
    """Notes something at the present line that a real device or NCCL refuses."""
    COUNTS.problems[f"{where()}: {what}"] += 1


def values(counter: Counter[str]) -> dict[str, int]:
    """A counter as JSON takes it."""
    found: dict[str, Any] = dict(sorted(counter.items()))
    return found
