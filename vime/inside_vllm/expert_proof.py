"""The proof of a mixture's experts, whose fused and repacked weights can only be asked by computing.

Tokens with one input that is not zero are sent to one expert each; a few of its outputs follow from a column of gate_proj and
up_proj and some rows of down_proj. Shape suffixes: M tokens of one expert, H hidden, I an expert's width here, R rows.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch

from vime.inside_vllm.stacked_experts import gated
from vime.inside_vllm.value_sample import QUANTIZED_TOLERANCE, PendingCheck, ValueSample, difference, is_exact

EXPERT_INPUT = 16.0
"""Size of the one input that an expert sees; weights of usual size then give numbers around one."""
EXPERT_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2**-6}
"""Tolerance as a share of the sum of absolute products, because an expert's inner values are rounded to the dtype."""

Parts = dict[str, tuple[str, ValueSample]]
"""An expert's gate_proj, up_proj and down_proj, and their biases if it has some (`down_proj.bias`): name and sample."""


def check_experts(of_layer: list[tuple[str, ValueSample]]) -> Iterable[str | PendingCheck]:
    """Compares each expert of one layer with the sent weights; yields an error line for weights that were not sent."""
    layer = of_layer[0][1].shard.module
    by_expert: dict[int, Parts] = {}
    for name, sample in of_layer:
        part = sample.shard.part if sample.shard.parameter == "weight" else f"{sample.shard.part}.bias"
        by_expert.setdefault(sample.shard.number, {})[part] = (name, sample)
    num_parts = 6 if hasattr(layer, "w13_bias") else 3
    if (
        len(by_expert) < layer.moe_config.num_local_experts
        and layer.moe_config.num_experts == layer.moe_config.num_logical_experts
    ):
        missing = layer.moe_config.num_local_experts - len(by_expert)
        yield f"the layer of {of_layer[0][0]}: {missing} experts were not sent"
    for parts in by_expert.values():
        if len(parts) < num_parts:
            yield f"{_name(parts)}: only {', '.join(sorted(parts))} of it was sent"
    experts = {number: parts for number, parts in by_expert.items() if len(parts) == num_parts}
    if not experts:
        return
    tolerance = EXPERT_TOLERANCE.get(layer.moe_config.in_dtype, QUANTIZED_TOLERANCE) if is_exact(layer) else QUANTIZED_TOLERANCE
    expected = [_products(layer, parts) for parts in experts.values()]
    token_MH = torch.cat([inputs for inputs, _, _ in expected])
    counts = [len(inputs) for inputs, _, _ in expected]
    numbers = [number for number, count in zip(experts, counts) for _ in range(count)]
    numbers_M = torch.tensor(numbers, dtype=torch.int32).to(token_MH.device, non_blocking=True)
    weights_M = torch.ones(len(token_MH), 1, dtype=torch.float32, device=token_MH.device)
    output_MH = layer.forward_modular(token_MH.clone(), weights_M, numbers_M.unsqueeze(1)).float()
    for parts, of_one_MH, (_, products_MR, sizes_MR) in zip(experts.values(), output_MH.split(counts), expected):
        read_MR = of_one_MH.index_select(1, parts["down_proj"][1].indices.to(token_MH.device))
        is_right = ((read_MR - products_MR).abs() <= tolerance * sizes_MR).all()  # which no NaN is
        yield PendingCheck(is_right=is_right, fault=partial(_fault, parts, read_MR, products_MR))


def _products(layer: Any, parts: Parts) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Inputs of one expert, its outputs at the rows that were kept of down_proj, and the size of the sums behind them."""
    gate, up, down = (parts[part][1] for part in ("gate_proj", "up_proj", "down_proj"))
    dtype, device = layer.moe_config.in_dtype, layer.w13_weight.device
    size = gate.shard.columns.stop - gate.shard.columns.start
    token_MH = torch.zeros(len(gate.indices), size, dtype=dtype, device=device)
    token_MH.scatter_(1, gate.indices.to(device, non_blocking=True).unsqueeze(1), EXPERT_INPUT)
    gate_MI, up_MI = (EXPERT_INPUT * sample.values.t().to(device, dtype).float() for sample in (gate, up))
    down_RI = down.values.to(device, dtype).float()
    if "down_proj.bias" not in parts:
        inner_MI = torch.nn.functional.silu(gate_MI) * up_MI
        return token_MH, inner_MI @ down_RI.t(), (inner_MI.abs() @ down_RI.abs().t()).clamp_min(1e-20)
    of_gate_I, of_up_I, of_down_H = (
        parts[f"{part}.bias"][1].values.to(device, dtype).float() for part in ("gate_proj", "up_proj", "down_proj")
    )
    inner_MI = gated(gate_MI + of_gate_I, up_MI + of_up_I)
    is_here = layer.moe_config.moe_parallel_config.tp_rank == 0  # it is added once
    bias_R = of_down_H.index_select(0, down.indices.to(device)) * is_here
    return token_MH, inner_MI @ down_RI.t() + bias_R, inner_MI.abs() @ down_RI.abs().t() + bias_R.abs() + 1e-20


def _fault(parts: Parts, read_MR: torch.Tensor, products_MR: torch.Tensor) -> str:
    return f"{_name(parts)}: {difference(read_MR, products_MR)}"


def _name(parts: Parts) -> str:
    """One name for all weights of an expert, because its output does not show which of them is wrong."""
    name = next(iter(parts.values()))[0]
    return f"{name.rsplit('.', 2)[0]}.(gate_proj|up_proj|down_proj).weight"
