"""Megatron's configuration of a model: its shape, the layout of ranks, and this project's choices for all models."""

from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.transformer.transformer_config import TransformerConfig

from vime.cluster.layout import splits_tokens
from vime.config import Precision, TrainerConfig
from vime.errors import ConfigError, Problem
from vime.model.architecture import Architecture
from vime.trainer import fp8, weight_gradient
from vime.trainer.cuda_limits import cuda_problems
from vime.trainer.megatron_args import REFUSED_ARGS


def torch_dtype(precision: Precision) -> torch.dtype:
    """Returns the data type of weights and activations."""
    return torch.bfloat16 if precision is Precision.bfloat16 else torch.float32


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    """GELU in its tanh form (arXiv 1606.08415), as Gemma has it."""
    return F.gelu(x, approximate="tanh")


def quick_gelu(x: torch.Tensor) -> torch.Tensor:
    """GELU by a sigmoid (arXiv 1606.08415), as gpt-oss has it; Megatron's own has to be compiled."""
    return x * torch.sigmoid(1.702 * x)


GATES = {"silu": F.silu, "gelu_tanh": gelu_tanh, "quick_gelu": quick_gelu}
"""The functions of the gate (`ModelFamily.activation`)."""


def transformer_config(architecture: Architecture, trainer: TrainerConfig) -> TransformerConfig:
    """Megatron's configuration. `trainer.megatron_args` overrides any field but those of `REFUSED_ARGS`.

    Raises `ConfigError` for those, and on a CUDA device for settings that `vime.trainer.cuda_limits` refuses.
    """
    _refuse(architecture, trainer)
    return TransformerConfig(**(_shape(architecture) | _training(trainer) | _layout(trainer) | trainer.megatron_args))


def _refuse(architecture: Architecture, trainer: TrainerConfig) -> None:
    refused = [
        Problem(key=f"trainer.megatron_args.{name}", value=trainer.megatron_args[name], remedy=REFUSED_ARGS[name])
        for name in REFUSED_ARGS
        if name in trainer.megatron_args
    ]
    if architecture.of.activation != "silu" and trainer.megatron_args.get("bias_activation_fusion"):
        remedy = f"there is no fused operation for the gate of {architecture.family.value}: leave it out"
        refused.append(Problem(key="trainer.megatron_args.bias_activation_fusion", value=True, remedy=remedy))
    if torch.cuda.is_available():
        refused += cuda_problems(trainer)
    if refused:
        raise ConfigError(refused)


def _shape(architecture: Architecture) -> dict[str, Any]:
    """The fields that the checkpoint determines."""
    family, linear = architecture.of, architecture.linear_attention
    fields: dict[str, Any] = {
        "num_layers": architecture.num_layers,
        "hidden_size": architecture.hidden_size,
        "num_attention_heads": architecture.num_attention_heads,
        "num_query_groups": architecture.num_key_value_heads,
        "kv_channels": architecture.head_dim,
        "ffn_hidden_size": architecture.intermediate_size,
        "normalization": "RMSNorm",
        "layernorm_epsilon": architecture.rms_norm_eps,
        "gated_linear_unit": True,
        "activation_func": GATES[family.activation],
        "activation_func_clamp_value": architecture.gate_limit,
        "glu_linear_offset": 0.0 if architecture.gate_limit is None else 1.0,
        "bias_activation_fusion": family.activation == "silu",  # on the CPU `vime.trainer.cpu.swiglu`
        "add_bias_linear": family.has_biases,
        "add_qkv_bias": family.qkv_bias,
        "qk_layernorm": family.qk_norm,
        "attention_output_gate": family.gates_attention,
        "layernorm_zero_centered_gamma": family.norm_adds_one,
        "softmax_scale": architecture.softmax_scale,
        "softmax_type": "learnable" if family.has_sinks else "vanilla",
    }
    if architecture.window:
        fields |= {
            "window_size": (architecture.window - 1, 0),
            "window_attn_skip_freq": [int(is_local) for is_local in architecture.local_layers],
        }
    if linear.full_every:
        fields |= {
            "experimental_attention_variant": "gated_delta_net",
            "linear_attention_freq": linear.full_every,
            "linear_num_key_heads": linear.num_key_heads,
            "linear_num_value_heads": linear.num_value_heads,
            "linear_key_head_dim": linear.key_head_dim,
            "linear_value_head_dim": linear.value_head_dim,
            "linear_conv_kernel_dim": linear.conv_kernel,
        }
    if architecture.num_experts:
        fields |= {
            "num_moe_experts": architecture.num_experts,
            "moe_router_topk": architecture.num_experts_per_token,
            "moe_ffn_hidden_size": architecture.moe_intermediate_size,
            "moe_router_load_balancing_type": "none",
            "moe_router_pre_softmax": not architecture.norm_topk_prob,
        }
    return fields


def _training(trainer: TrainerConfig) -> dict[str, Any]:
    """Number formats, initialization, fused kernels and activation checkpointing."""
    dtype = torch_dtype(trainer.precision)
    fields: dict[str, Any] = {
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "bf16": dtype is torch.bfloat16,
        "calculate_per_token_loss": True,
        "use_cpu_initialization": not torch.cuda.is_available(),
        "perform_initialization": False,
        "gradient_accumulation_fusion": dtype is torch.bfloat16 and weight_gradient.install(),
        "bias_dropout_fusion": False,
        "masked_softmax_fusion": False,
    }
    fields |= fp8.fields(trainer.fp8)
    if trainer.recompute:
        fields |= {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    return fields


def _layout(trainer: TrainerConfig) -> dict[str, Any]:
    """Fields that spread the model and its tokens over the ranks."""
    rounds = trainer.virtual_pipeline_parallel_size
    fields: dict[str, Any] = {
        "tensor_model_parallel_size": trainer.tensor_parallel_size,
        "pipeline_model_parallel_size": trainer.pipeline_parallel_size,
        "context_parallel_size": trainer.context_parallel_size,
        "sequence_parallel": splits_tokens(trainer),
        "expert_model_parallel_size": trainer.expert_parallel_size,
        "expert_tensor_parallel_size": 1,
        "virtual_pipeline_model_parallel_size": rounds if rounds > 1 else None,
        "variable_seq_lengths": True,
        "moe_token_dispatcher_type": "alltoall",
    }
    if rounds > 1:  # in batches, both directions between two stages would be mixed up
        fields |= {"overlap_p2p_comm": True, "batch_p2p_comm": False}
    return fields
