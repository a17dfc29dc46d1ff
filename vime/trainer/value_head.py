"""The value head: one number per token from the hidden states of the last layer, and what it trains (`algorithm.critic`).

The head has no bias, begins at 0, so that all first values are 0, and computes in float32. It is whole on every tensor-parallel
rank; all of them compute the same values and the same gradient.

Shape suffixes: T tokens of this rank's part of a row, N wanted tokens, M those predicted on this rank, H hidden.
"""

from typing import Any

import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.tensor_parallel.mappings import (
    gather_from_sequence_parallel_region,
    reduce_from_tensor_model_parallel_region,
)

from vime.trainer.micro_batch import Wanted

NAME = "value_head."
"""Beginning of the name of its parameter, which no Hugging Face checkpoint has."""
ATTENTION = ".self_attention."
"""Part of the names of a layer's parameters that `place=frozen_attention` keeps: projections and norms of queries and keys."""


class ValueHead(torch.nn.Linear):
    """The value head of a model; `gradient_scale` is the part of its gradient that the layers get."""

    def __init__(self, hidden_size: int, *, gradient_scale: float = 1.0) -> None:
        super().__init__(hidden_size, 1, bias=False)
        torch.nn.init.zeros_(self.weight)
        self.gradient_scale = gradient_scale

    def forward(self, hidden_TH: torch.Tensor) -> torch.Tensor:
        """Values, [T], float32."""
        scaled_TH = _scaled(hidden_TH, self.gradient_scale)
        return F.linear(scaled_TH.float(), self.weight.float()).squeeze(-1)


def token_values(head: ValueHead, hidden_TH: torch.Tensor, wanted: Wanted, *, sequence_parallel: bool) -> torch.Tensor:
    """Values of the states in which the wanted tokens were sampled, [N], float32; the same on all context-parallel ranks.

    Each of these sends gradients through its own part only, as with logprobs (`vime.trainer.logprob`).
    """
    if sequence_parallel:
        hidden_TH = gather_from_sequence_parallel_region(hidden_TH, tensor_parallel_output_grad=False)
    values_M = head(hidden_TH.index_select(0, wanted.predict_M))
    if wanted.place_M is None:
        return values_M
    part_N = values_M.new_zeros(wanted.count).index_copy(0, wanted.place_M, values_M)
    return reduce_from_tensor_model_parallel_region(part_N, group=parallel_state.get_context_parallel_group())


def freeze_attention(model: torch.nn.Module) -> None:
    """Attention keeps its weights from now on."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(ATTENTION not in name)


def _scaled(hidden_TH: torch.Tensor, scale: float) -> torch.Tensor:
    if scale == 1.0:
        return hidden_TH
    return _ScaledGradient.apply(hidden_TH, scale) if scale else hidden_TH.detach()


class _ScaledGradient(torch.autograd.Function):
    """The same numbers, with a part of their gradient."""

    @staticmethod
    def forward(context: Any, hidden_TH: torch.Tensor, scale: float) -> torch.Tensor:
        context.scale = scale
        return hidden_TH.view_as(hidden_TH)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0] * context.scale, None
