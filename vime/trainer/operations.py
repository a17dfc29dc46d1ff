"""Operations of a step for which a device may have better kernels than PyTorch's own.

Callers try each operation first. It returns None, or False, where it has no kernel for these tensors; then PyTorch computes.
`vime.trainer.cpu` provides the operations for processors. On CUDA, and without that package, there are none.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


def _none(*_: Any) -> None:
    """An operation without a kernel."""


@dataclass(slots=True)
class Operations:
    """The operations of this process. Shapes are those of the modules that call them.

    Example: `OPERATIONS.rms_norm(x, weight, 1e-6)` is None on CUDA, and the normalized `x` on a processor.
    """

    rms_norm: Callable[..., torch.Tensor | None] = _none
    """x, weight, eps (`norm.py`)."""
    rotate: Callable[..., torch.Tensor | None] = _none
    """x_THD, cosines, sines (`attention.py`)."""
    attend_packed: Callable[..., torch.Tensor | None] = _none
    """Queries, keys and values of packed sequences, the sequences, the scale: rotated and attended to (`attention.py`)."""
    attend: Callable[..., torch.Tensor | None] = _none
    """A batch of queries, keys and values, what they see, the scale (`attention.py`)."""
    logprobs: Callable[..., tuple[torch.Tensor, torch.Tensor] | None] = _none
    """Logits of the whole vocabulary, targets, temperature: logprobs and entropies (`logprob.py`)."""
    add_weight_gradient: Callable[..., bool | None] = _none
    """Inputs, gradients of the outputs, the float32 sum to add to; True if it was added (`weight_gradient.py`)."""
    adds_weight_gradients: Callable[[], bool] = bool
    """True if `add_weight_gradient` has a kernel on this processor; the call may have to compile it."""


OPERATIONS = Operations()
