"""The time of a training step, by kind of work; `bench_trainer.py --profile` writes the table.

PyTorch's profiler gives each operation's time without those it calls. An operation counts as the kind that its own name or the
nearest name around it says; the rest of the step is Python, Megatron's schedule and packing. Times are the clock's, so on a busy
machine the shares of one step vary, and the table holds medians.
"""

import time
from collections.abc import Callable
from typing import Any

PYTHON = "Python, schedule, packing"
AUTOGRAD = "autograd and other operations"
KINDS = {
    "matrix products": ("aten::mm", "aten::addmm", "aten::bmm", "LinearWithGradAccumulation"),
    "attention": ("scaled_dot_product", "WideBackward", "BlockAttention"),
    "norms": ("RMSNorm",),
    "rotary embedding": ("_Rotate",),
    "SwiGLU": ("SwiGLU", "aten::silu", "SiluBackward"),
    "logprobs and entropy": ("LogprobAndEntropy", "ChunkedHead"),
    "optimizer": ("Optimizer.step", "fused_adam", "foreach"),
    "copies and casts": ("aten::copy_", "aten::cat", "aten::fill_", "aten::index", "aten::_to_copy"),
}
"""Parts of the names of operations, for each kind."""


def kind(event: Any) -> str:
    """The kind of work that an event of the profiler, or the nearest one around it, is named after."""
    while event is not None:
        for name, marks in KINDS.items():
            if any(mark in event.name for mark in marks):
                return name
        event = event.cpu_parent
    return AUTOGRAD


def profiled(step: Callable[[], None]) -> Callable[[], dict[str, float]]:
    """A step that returns its seconds by kind of work, and as `whole` all of them."""
    from torch.profiler import ProfilerActivity, profile

    def measured() -> dict[str, float]:
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            started = time.perf_counter()
            step()
            whole = time.perf_counter() - started
        seconds = dict.fromkeys((*KINDS, AUTOGRAD), 0.0)
        for event in profiler.events() or ():
            seconds[kind(event)] += event.self_cpu_time_total / 1e6
        return seconds | {PYTHON: whole - sum(seconds.values()), "whole": whole}

    return measured
