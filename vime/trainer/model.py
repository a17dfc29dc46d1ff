"""The Megatron model of an architecture: configuration, layer spec, GPTModel, gradient buffers and optimizer.

With Transformer Engine its layer spec is used; without it the local one, with `PackedAttention` as its core attention. The
model returns hidden states, not logits: `vime.trainer.logprob` computes logits for response tokens only.
"""

import importlib.util
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer, get_standard_config_overrides
from megatron.core.optimizer.optimizer import MegatronOptimizer
from megatron.core.tensor_parallel.layers import set_tensor_model_parallel_attributes
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig

from vime.config import Precision, TrainerConfig
from vime.errors import ConfigError, Problem
from vime.trainer import names
from vime.trainer.architecture import Architecture
from vime.trainer.attention import PackedAttention, PackedSequences, fill_rotary
from vime.trainer.norm import RMSNorm
from vime.trainer.parallel import device

_UNSUPPORTED = "not supported; remove it"
REFUSED_ARGS = {
    "tensor_model_parallel_size": "set trainer.tensor_parallel_size",
    "pipeline_model_parallel_size": "set trainer.pipeline_parallel_size",
    "params_dtype": "set trainer.precision",
    "calculate_per_token_loss": "the loss is a weighted sum over tokens; remove it",
    "sequence_parallel": _UNSUPPORTED,
    "context_parallel_size": _UNSUPPORTED,
    "expert_model_parallel_size": _UNSUPPORTED,
    "virtual_pipeline_model_parallel_size": _UNSUPPORTED,
}
"""Fields of Megatron's configuration that are decided elsewhere or would train something else in silence."""


class PackedModel(GPTModel):
    """GPTModel on packed rows. `forward` of the last pipeline stage returns hidden states, [T, 1, hidden]."""

    def _preprocess(self, *args: Any, packed_seq_params: Any = None, **kwargs: Any) -> Any:
        """With our own attention the rotary angles are looked up once per micro-batch instead of in every layer."""
        outputs: Any = super()._preprocess(*args, packed_seq_params=packed_seq_params, **kwargs)
        if not isinstance(packed_seq_params, PackedSequences) or uses_transformer_engine():
            return outputs
        hidden, angles, *others = outputs
        fill_rotary(packed_seq_params, angles[:, 0, 0], self.config.params_dtype)
        return (hidden, None, *others)

    def _postprocess(self, hidden_states: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return hidden_states

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """This tensor-parallel rank's part of the logits, [..., vocabulary / TP], of hidden states."""
        weight = self.shared_embedding_or_output_weight() if self.share_embeddings_and_output_weights else None
        logits, _ = self.output_layer(hidden, weight=weight)
        return logits


def uses_transformer_engine() -> bool:
    """True on machines with CUDA and Transformer Engine."""
    return torch.cuda.is_available() and importlib.util.find_spec("transformer_engine") is not None


def torch_dtype(precision: Precision) -> torch.dtype:
    """Of weights and activations."""
    return torch.bfloat16 if precision is Precision.bfloat16 else torch.float32


def transformer_config(architecture: Architecture, trainer: TrainerConfig) -> TransformerConfig:
    """Megatron's configuration. `trainer.megatron_args` overrides any field but those of `REFUSED_ARGS` (`ConfigError`)."""
    refused = [
        Problem(key=f"trainer.megatron_args.{name}", value=trainer.megatron_args[name], remedy=REFUSED_ARGS[name])
        for name in REFUSED_ARGS
        if name in trainer.megatron_args
    ]
    if refused:
        raise ConfigError(refused)
    dtype = torch_dtype(trainer.precision)
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
        "activation_func": F.silu,
        "add_bias_linear": False,
        "add_qkv_bias": architecture.has_qkv_bias,
        "qk_layernorm": architecture.has_qk_norm,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "bf16": dtype is torch.bfloat16,
        "tensor_model_parallel_size": trainer.tensor_parallel_size,
        "pipeline_model_parallel_size": trainer.pipeline_parallel_size,
        "variable_seq_lengths": True,
        "moe_token_dispatcher_type": "alltoall",
        "calculate_per_token_loss": True,
        "use_cpu_initialization": not torch.cuda.is_available(),
        "perform_initialization": False,
        "gradient_accumulation_fusion": False,
        "bias_dropout_fusion": False,
        "bias_activation_fusion": False,
        "masked_softmax_fusion": False,
    }
    if architecture.num_experts:
        fields |= {
            "num_moe_experts": architecture.num_experts,
            "moe_router_topk": architecture.num_experts_per_token,
            "moe_ffn_hidden_size": architecture.moe_intermediate_size,
            "moe_router_load_balancing_type": "none",
            "moe_router_pre_softmax": not architecture.norm_topk_prob,
        }
    return TransformerConfig(**(fields | trainer.megatron_args))


def _layer_spec(architecture: Architecture) -> ModuleSpec:
    experts = architecture.num_experts or None
    if uses_transformer_engine():
        return get_gpt_layer_with_transformer_engine_spec(
            num_experts=experts, moe_grouped_gemm=experts is not None, qk_layernorm=architecture.has_qk_norm
        )
    spec = get_gpt_layer_local_spec(num_experts=experts, qk_layernorm=architecture.has_qk_norm, normalization="RMSNorm")
    layer: Any = spec.submodules
    layer.input_layernorm = layer.pre_mlp_layernorm = RMSNorm
    attention = layer.self_attention.submodules
    attention.core_attention = PackedAttention
    if architecture.has_qk_norm:
        attention.q_layernorm = attention.k_layernorm = RMSNorm
    return spec


def _block_spec(architecture: Architecture, config: TransformerConfig) -> ModuleSpec | TransformerBlockSubmodules:
    spec = _layer_spec(architecture)
    if uses_transformer_engine():
        return spec
    num_layers = get_num_layers_to_build(config)
    return TransformerBlockSubmodules(layer_specs=[spec] * num_layers, layer_norm=RMSNorm)  # type: ignore[arg-type]


def build_model(architecture: Architecture, trainer: TrainerConfig) -> PackedModel:
    """This rank's part of the model, with weights still to be loaded."""
    config = transformer_config(architecture, trainer)
    model = PackedModel(
        config=config,
        transformer_layer_spec=_block_spec(architecture, config),  # type: ignore[arg-type]
        vocab_size=architecture.vocab_size,
        max_sequence_length=architecture.max_position_embeddings,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=architecture.tie_word_embeddings,
        position_embedding_type="rope",
        rotary_base=architecture.rope_theta,  # type: ignore[arg-type]
        rope_scaling=architecture.rope_scaling_factor is not None,
        rope_scaling_factor=architecture.rope_scaling_factor or 1.0,
    )
    _mark_shards(model)
    return model.to(device=device(), dtype=config.params_dtype)


def _mark_shards(model: PackedModel) -> None:
    """Says which parameters are shards, so that the gradient norm counts all of them; Megatron does so only with random
    initialization, which a loaded model skips.
    """
    for name, parameter in model.named_parameters():
        layout = names.mapping(name, layer_offset=0).layout
        if layout is not names.Layout.replicated and not getattr(parameter, "tensor_model_parallel", False):
            dim = 1 if layout is names.Layout.columns else 0
            set_tensor_model_parallel_attributes(parameter, True, dim, 1)


def wrap_model(model: PackedModel, trainer: TrainerConfig) -> DistributedDataParallel:
    """Megatron's gradient buffers around a loaded model; gradients are summed over ranks in float32."""
    ddp_config = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        overlap_grad_reduce=False,
        use_distributed_optimizer=trainer.data_parallel_size > 1,
    )
    wrapped = DistributedDataParallel(model.config, ddp_config, model)
    wrapped.broadcast_params()
    model.config.no_sync_func = wrapped.no_sync
    model.config.finalize_model_grads_func = lambda models, *_, **__: finalize_model_grads(models)
    return wrapped


def build_optimizer(wrapped: DistributedDataParallel, trainer: TrainerConfig) -> MegatronOptimizer:
    """Megatron's Adam with decoupled weight decay on matrices only; in bfloat16 with float32 master weights."""
    dtype = torch_dtype(trainer.precision)
    config = OptimizerConfig(
        optimizer="adam",
        lr=trainer.lr,
        min_lr=trainer.min_lr,
        weight_decay=trainer.weight_decay,
        adam_beta1=trainer.adam_beta1,
        adam_beta2=trainer.adam_beta2,
        clip_grad=trainer.clip_grad,
        bf16=dtype is torch.bfloat16,
        params_dtype=dtype,
        use_distributed_optimizer=trainer.data_parallel_size > 1,
    )
    optimizer = get_megatron_optimizer(config, [wrapped], config_overrides=get_standard_config_overrides(config))
    for group in optimizer.param_groups:  # Megatron leaves the multiplier to its scheduler, which is not used here
        group["weight_decay"] = trainer.weight_decay * group["wd_mult"]
    return optimizer
