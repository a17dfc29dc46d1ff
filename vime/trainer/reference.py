"""The reference model of the KL: the weights that the run began with, kept in host memory.

For its logprobs they change places with the trained ones, tensor by tensor, so the device never holds more than one tensor
twice; the host memory is page-locked where there is a CUDA device, so that copies go at the full speed of the bus.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Reference:
    """A copy of a model's parameters as they are now."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._parameters = list(model.parameters())
        sizes = [parameter.numel() for parameter in self._parameters]
        first = self._parameters[0]  # all have the run's precision; one block, because PyTorch rounds each up
        block = torch.empty(sum(sizes), dtype=first.dtype, pin_memory=first.is_cuda)
        self._kept = [part.view(own.shape) for part, own in zip(block.split(sizes), self._parameters)]
        for kept, parameter in zip(self._kept, self._parameters):
            kept.copy_(parameter.detach())

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model has the reference's weights for the length of the `with` block; afterwards its own, bitwise as before."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        for parameter, kept in zip(self._parameters, self._kept):
            own = parameter.detach().clone()
            parameter.copy_(kept, non_blocking=True)
            kept.copy_(own, non_blocking=True)
        torch.cuda.synchronize()  # the CPU may read the copies in host memory again
