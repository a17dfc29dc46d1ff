"""Second weights of a model, kept in host memory: those that the run began with, a running average, or another checkpoint's.

Only trained weights have second ones; with adapters these are the adapters, and the model's own weights serve both.

For their logprobs they change places with the trained ones, tensor by tensor, so the device never holds more than one tensor
twice; the host memory is page-locked where there is a CUDA device, so that copies go at the full speed of the bus.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class SecondWeights:
    """A copy of trained parameters as they are now; `follow` moves it."""

    def __init__(self, parameters: list[torch.nn.Parameter], *, decay: float | None = None) -> None:
        """With a `decay` the weights are a running average, kept in float32 because each step adds little."""
        self._parameters, self._decay = parameters, decay
        sizes = [parameter.numel() for parameter in self._parameters]
        first = self._parameters[0]  # all have the run's precision; one block, because PyTorch rounds each up
        dtype = first.dtype if decay is None else torch.float32
        block = torch.empty(sum(sizes), dtype=dtype, pin_memory=first.is_cuda)
        self.kept = [part.view(own.shape) for part, own in zip(block.split(sizes), self._parameters)]
        for kept, parameter in zip(self.kept, self._parameters):
            kept.copy_(parameter.detach())

    @torch.no_grad()
    def follow(self) -> None:
        """Moves the average towards the present weights: decay · average + (1 - decay) · weights; others stay."""
        if self._decay is None:
            return
        for kept, parameter in zip(self.kept, self._parameters):
            kept.lerp_(parameter.to(kept.device, torch.float32), 1.0 - self._decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model has these weights for the length of the `with` block; afterwards its own, bitwise as before."""
        if self._decay is None:
            self._exchange(self.kept)
            try:
                yield
            finally:
                self._exchange(self.kept)
            return
        rounded = [kept.to(parameter.dtype) for kept, parameter in zip(self.kept, self._parameters)]
        self._exchange(rounded)  # the average itself is not rounded
        try:
            yield
        finally:
            self._exchange(rounded)

    @torch.no_grad()
    def _exchange(self, others: list[torch.Tensor]) -> None:
        for parameter, other in zip(self._parameters, others):
            own = parameter.detach().clone()
            parameter.copy_(other, non_blocking=True)
            other.copy_(own, non_blocking=True)
        torch.cuda.synchronize()  # the CPU may read the copies in host memory again
