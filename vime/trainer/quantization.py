"""Quantization-aware training: linear layers compute with the very integers that servers have, and train what is rounded.

Forward passes quantize weights, and in 8 bits inputs too, by `vime.weights.quantize`. Backward passes take rounding for the
identity (the straight-through estimator, arXiv 1308.3432): the gradient of a product's inputs is that of a product with the
rounded weights, the gradient of its weights that with the rounded inputs. The parameters themselves stay as they are, and with
them the optimizer's masters and the checkpoints.

Products of integers are exact in float32 up to sums of 2^24, and are multiplied by the scales and rounded to the precision of the
model once, as in servers. Under tensor parallelism a row-parallel layer has a part of the inputs of each output and token on each
rank, so their largest magnitude is the maximum over the ranks.

Shape suffixes: T tokens (all leading dimensions), I inputs and O outputs of this rank's part of the layer.
"""

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.tensor_parallel.mappings import (
    _gather_along_first_dim,
    _reduce_scatter_along_first_dim,
    copy_to_tensor_model_parallel_region,
)

from vime.config import TrainedQuantization
from vime.trainer import names
from vime.trainer.weight_gradient import add_weight_gradient, kept_gradient
from vime.weights.quantize import four_bits, integers, is_quantized, largest, scale_of


def attach(model: torch.nn.Module, quantization: TrainedQuantization) -> None:
    """Makes the linear layers of a model (`vime.trainer.model.Chunks`) compute with integers: those that servers have as such."""
    chunks: Any = model
    for part in chunks.parts:
        for name, layer in part.named_modules():
            if not isinstance(layer, ColumnParallelLinear | RowParallelLinear):
                continue
            mapped = names.mapping(f"{name}.weight", part.family, layer_offset=0).names
            if all(map(is_quantized, mapped)):
                own: Any = layer
                own._forward_impl = partial(_forward, layer, quantization)
                own.quantization = quantization


def _forward(
    layer: Any,
    quantization: TrainedQuantization,
    *,
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    gradient_accumulation_fusion: bool,
    allreduce_dgrad: bool,
    sequence_parallel: bool,
    **_: Any,
) -> torch.Tensor:
    """The product of a layer, in place of Megatron's function of the same arguments."""
    group = layer.tp_group
    if allreduce_dgrad:
        input = copy_to_tensor_model_parallel_region(input, group=group)
    is_int8 = quantization is TrainedQuantization.int8
    split = group if sequence_parallel else None
    cut = group if isinstance(layer, RowParallelLinear) and group.size() > 1 else None
    return _Product.apply(input, weight, bias, is_int8, gradient_accumulation_fusion, split, cut)  # type: ignore[no-any-return]


class _Product(torch.autograd.Function):
    """Inputs [..., I] times the transposed weight [O, I]; `split` are the ranks that split the tokens, `cut` the inputs."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight_OI: torch.Tensor,
        bias_O: torch.Tensor | None,
        is_int8: bool,
        is_fused: bool,
        split: Any,
        cut: Any,
    ) -> torch.Tensor:
        ctx.split, ctx.has_bias, ctx.sum = split, bias_O is not None, getattr(weight_OI, "main_grad", None) if is_fused else None
        if not is_int8:
            ctx.save_for_backward(x, None, weight_OI, None)
            output = torch.matmul(_whole(x, split), four_bits(weight_OI).t())
            return output if bias_O is None else output + bias_O
        scale_T1, scale_O1 = (scale_of(_over_ranks(largest(values), cut)) for values in (x, weight_OI))
        rounded = integers(x, scale_T1).to(torch.int8)
        ctx.save_for_backward(rounded, scale_T1, weight_OI, scale_O1)
        output = _multiply(_whole(rounded, split), integers(weight_OI, scale_O1))
        output *= _whole(scale_T1, split)
        output *= scale_O1.t()
        if bias_O is not None:
            output += bias_O
        return output.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        kept, scale_T1, weight_OI, scale_O1 = ctx.saved_tensors
        gradient, dtype = gradients[0].contiguous(), weight_OI.dtype
        rounded_OI = four_bits(weight_OI) if scale_O1 is None else (integers(weight_OI, scale_O1) * scale_O1).to(dtype)
        of_x = gradient.matmul(rounded_OI)
        if ctx.split is not None:
            of_x = _reduce_scatter_along_first_dim(of_x, ctx.split)
        of_weight, of_bias, flat_TO = None, None, gradient.flatten(0, -2)
        if ctx.needs_input_grad[1]:
            x = _whole(kept, ctx.split)
            x = x if scale_T1 is None else (x * _whole(scale_T1, ctx.split)).to(dtype)
            of_weight = _weight_gradient(x.flatten(0, -2), flat_TO, weight_OI, ctx.sum)
        if ctx.has_bias:
            of_bias = flat_TO.sum(0)
        return of_x, of_weight, of_bias, None, None, None, None


def _whole(part: torch.Tensor, split: Any) -> torch.Tensor:
    """All tokens of the ranks that split them (sequence parallelism)."""
    return part if split is None else _gather_along_first_dim(part, split)


def _over_ranks(largest_N1: torch.Tensor, cut: Any) -> torch.Tensor:
    """The largest magnitudes over the ranks that hold parts of the same rows, in place."""
    if cut is not None:
        dist.all_reduce(largest_N1, op=dist.ReduceOp.MAX, group=cut)
    return largest_N1


def _multiply(rounded: torch.Tensor, rounded_OI: torch.Tensor) -> torch.Tensor:
    """Products of integers in float32; bfloat16 holds these integers exactly."""
    flat_TI = rounded.flatten(0, -2)
    if rounded.is_cuda:
        product_TO = torch.mm(flat_TI.bfloat16(), rounded_OI.bfloat16().t(), out_dtype=torch.float32)
    else:
        product_TO = flat_TI.float() @ rounded_OI.t()
    return product_TO.view(*rounded.shape[:-1], -1)


def _weight_gradient(x_TI: torch.Tensor, gradient_TO: torch.Tensor, weight: torch.Tensor, total: Any) -> torch.Tensor | None:
    """The gradient of a weight; with a sum of Megatron's it is added there."""
    if total is None:
        return gradient_TO.t() @ x_TI
    add_weight_gradient(x_TI, gradient_TO, total)
    return kept_gradient(weight, is_always=True)
