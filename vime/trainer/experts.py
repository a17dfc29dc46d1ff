"""Experts behind Megatron's interface, on CUDA with one product per layer for all experts of a rank.

Megatron's `SequentialMLP` calls the experts one after another: a dozen small kernels each, which take longer to start than to
run. Its parameters, names and checkpoints stay; in bfloat16 on CUDA the products of all experts are PyTorch's grouped ones,
between them the gate is one operation over all tokens, and gradients of weights are summed in float32, expert by expert.

With `trainer.quantization=int4` the products are those of the weights that 4-bit integers represent, as in other layers
(`vime.trainer.quantization`).

Shape suffixes: R rows (tokens times chosen experts, by expert), P rows of an expert, E experts, H inputs, O outputs of a layer,
F channels of an expert (2F: gate and linear).
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.tensor_parallel.layers import RowParallelLinear
from megatron.core.transformer import mlp
from megatron.core.transformer.moe.experts import SequentialMLP

from vime.trainer.weight_gradient import add_weight_gradient, kept_gradient
from vime.weights.quantize import four_bits


class GroupedExperts(SequentialMLP):
    """The experts of a layer on this rank."""

    def forward(
        self, permuted_local_hidden_states: torch.Tensor, tokens_per_expert: torch.Tensor, permuted_probs: torch.Tensor
    ) -> tuple[torch.Tensor, None]:
        """Outputs [R, H], times the routing weights [R], of rows [R, H] that are ordered by expert."""
        rows_RH = permuted_local_hidden_states
        if not (rows_RH.is_cuda and rows_RH.dtype is torch.bfloat16 and rows_RH.shape[0] and self.config.bias_activation_fusion):
            return super().forward(rows_RH, tokens_per_expert, permuted_probs)
        return self._grouped(rows_RH, tokens_per_expert, permuted_probs), None

    def _grouped(self, rows_RH: torch.Tensor, tokens_per_expert: torch.Tensor, weights_R: torch.Tensor) -> torch.Tensor:
        counts: list[int] = tokens_per_expert.tolist()  # Megatron has brought them to the host with the sizes of its messages
        ends_E = torch.tensor(counts).cumsum(0).to(device=rows_RH.device, dtype=torch.int32, non_blocking=True)
        modules: list[Any] = list(self.local_experts)
        is_int4 = hasattr(modules[0].linear_fc1, "quantization")
        both_R2F = _GroupedLinear.apply(rows_RH, ends_E, counts, is_int4, *(module.linear_fc1.weight for module in modules))
        gated_RF = mlp.weighted_bias_swiglu_impl(
            both_R2F, None, weights_R.unsqueeze(-1), False
        )  # fused, or `vime.trainer.swiglu`
        return _GroupedLinear.apply(gated_RF, ends_E, counts, is_int4, *(module.linear_fc2.weight for module in modules))


class BiasedOutput(RowParallelLinear):
    """The second product of an expert with biases.

    Megatron adds the bias in place, and autograd forbids that for an output that the sum over ranks has returned as it was.
    """

    def forward(self, input_: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The output and the bias."""
        output, bias = super().forward(input_)
        return output.clone(), bias


class _GroupedLinear(torch.autograd.Function):
    """Rows times the transposed weight of their expert; `counts` are the rows of each expert, `ends_E` where they end."""

    @staticmethod
    def forward(
        ctx: Any, rows_RH: torch.Tensor, ends_E: torch.Tensor, counts: list[int], is_int4: bool, *weights: torch.Tensor
    ) -> torch.Tensor:
        is_trained = ctx.needs_input_grad[4]
        ctx.save_for_backward(rows_RH if is_trained else None, ends_E, *weights)
        ctx.is_int4, ctx.counts, ctx.sums = is_int4, counts, [getattr(weight, "main_grad", None) for weight in weights]
        return F.grouped_mm(rows_RH, _stacked(weights, is_int4).transpose(1, 2), offs=ends_E)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        rows_RH, ends_E, *weights = ctx.saved_tensors
        gradient_RO = gradients[0].contiguous()
        of_rows_RH = F.grouped_mm(gradient_RO, _stacked(weights, ctx.is_int4), offs=ends_E)
        if rows_RH is None:
            return of_rows_RH, None, None, None, *(None for _ in weights)
        of_weights: list[torch.Tensor | None] = []
        parts = zip(rows_RH.split(ctx.counts), gradient_RO.split(ctx.counts), weights, ctx.sums, strict=True)
        for part_PH, gradient_PO, weight, total in parts:
            found = weight.new_zeros(weight.shape, dtype=torch.float32) if total is None else total
            add_weight_gradient(part_PH, gradient_PO, found)
            of_weights.append(found.to(weight.dtype) if total is None else kept_gradient(weight, is_always=True))
        return of_rows_RH, None, None, None, *of_weights


def _stacked(weights: Sequence[torch.Tensor], is_int4: bool) -> torch.Tensor:
    """The weights of all experts that are multiplied."""
    return torch.stack([four_bits(weight) if is_int4 else weight for weight in weights])
