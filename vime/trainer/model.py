"""The Megatron model of an architecture: layer spec, GPTModel, gradient buffers and optimizer.

Layers are Megatron's local ones, with `PackedAttention` as their core attention. The model returns hidden states, not logits:
`vime.trainer.logprob` computes logits for response tokens only.
"""

from typing import Any, cast

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.common.language_module.language_module import LanguageModule
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer, get_standard_config_overrides
from megatron.core.optimizer.optimizer import MegatronOptimizer
from megatron.core.tensor_parallel.layers import set_tensor_model_parallel_attributes
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset

from vime.cluster.layout import num_copies
from vime.config import CriticConfig, CriticPlace, TrainerConfig
from vime.model.architecture import Architecture
from vime.model.families import ModelFamily
from vime.trainer import fp8, names
from vime.trainer.attention import PackedAttention
from vime.trainer.delta_net import DELTA_NET
from vime.trainer.experts import BiasedOutput, GroupedExperts
from vime.trainer.lora import Adapter, ColumnLinear, RowLinear, WordEmbedding
from vime.trainer.megatron_config import torch_dtype, transformer_config
from vime.trainer.norm import RMSNorm
from vime.trainer.packed_sequences import PackedSequences, fill_rotary
from vime.trainer.parallel import device
from vime.trainer.rotary import attention_factor, local_frequencies, scale_rotary
from vime.trainer.value_head import ValueHead

HEAD_ROWS = 8192
"""Rows of the head that are converted at a time where logits are wanted in float32."""


class PackedModel(GPTModel):
    """GPTModel on packed rows. `forward` of the last pipeline stage returns hidden states, [T, 1, hidden]."""

    family: ModelFamily
    local_frequencies_D: torch.Tensor | None = None
    """Angle per position of each pair of channels in layers of local attention; None where it is that of all layers."""
    value_head: ValueHead | None
    """The head of values on the last pipeline stage, with a critic; a critic with a model of its own has no other head."""

    def _preprocess(self, *args: Any, packed_seq_params: Any = None, **kwargs: Any) -> Any:
        """The rotary angles are looked up once per micro-batch instead of in every layer."""
        outputs: Any = super()._preprocess(*args, packed_seq_params=packed_seq_params, **kwargs)
        hidden, angles, *others = outputs
        if self.pre_process and self.family.scales_embeddings:
            hidden = hidden * float(torch.tensor(self.config.hidden_size**0.5).to(hidden.dtype))
        if not isinstance(packed_seq_params, PackedSequences):
            return (hidden, angles, *others)
        fill_rotary(
            packed_seq_params,
            angles[:, 0, 0],
            self.config.params_dtype,
            factor=attention_factor(self.config),
            local_frequencies_D=self.local_frequencies_D,
        )
        return (hidden, None, *others)

    def _postprocess(self, hidden_states: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return hidden_states

    def sharded_state_dict(self, prefix: str = "", sharded_offsets: Any = (), metadata: Any = None) -> Any:
        """Megatron's description of the tensors; its own for language models wants a head over the vocabulary."""
        if self.post_process and self.output_layer is None:
            return super(LanguageModule, self).sharded_state_dict(prefix, sharded_offsets, metadata)
        return super().sharded_state_dict(prefix, sharded_offsets, metadata)

    def logits(self, hidden: torch.Tensor, *, in_float32: bool = False) -> torch.Tensor:
        """This tensor-parallel rank's part of the logits, [..., vocabulary / TP], of hidden states.

        With `in_float32` neither the products nor the logits are rounded to the weights' dtype, for which a part of the head at
        a time is converted; for use without gradients.
        """
        head_VH = self.head_weight()
        if in_float32 and head_VH.dtype is not torch.float32:
            assert not torch.is_grad_enabled(), "the head in float32 has no gradients"
            logits = torch.cat([hidden.float() @ part_VH.float().t() for part_VH in head_VH.split(HEAD_ROWS)], dim=-1)
            if (adapter := self.head_adapter) is not None:
                a_RH, b_VR = (matrix.float() for matrix in adapter.matrices())
                logits += adapter.scale * ((hidden.float() @ a_RH.t()) @ b_VR.t())
            return logits
        logits, _ = self.output_layer(hidden, weight=head_VH)
        return logits

    @property
    def shares_embedding(self) -> bool:
        """True if the embedding is on this rank, and the head is the same tensor."""
        return (
            self.share_embeddings_and_output_weights and self.pre_process and self.post_process and self.output_layer is not None
        )

    @property
    def head_adapter(self) -> Adapter | None:
        """The adapter of the head, on the last pipeline stage."""
        return getattr(self.output_layer, "lora", None)

    def head_factors(self, hidden_NH: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        """[N, R] and [vocabulary / TP, R], whose product the head's adapter adds to the logits; None without one."""
        if (adapter := self.head_adapter) is None:
            return None
        a_RH, b_VR = adapter.matrices()
        head: Any = self.output_layer
        return head.narrow(hidden_NH, a_RH) * adapter.scale, b_VR

    def head_weight(self) -> torch.Tensor:
        """This tensor-parallel rank's part of the head, [vocabulary / TP, hidden]; with tied embeddings, the embedding."""
        weight_VH = (
            self.shared_embedding_or_output_weight() if self.share_embeddings_and_output_weights else self.output_layer.weight
        )
        assert weight_VH is not None, "a pipeline stage between the first and the last has no head"
        return weight_VH


class NormedProduct(RowLinear):
    """A row-parallel product, whose output is normalized before it is added to the hidden states."""

    def __init__(self, input_size: int, output_size: int, *, config: TransformerConfig, **more: Any) -> None:
        super().__init__(input_size, output_size, config=config, **more)
        self.post_norm = RMSNorm(config, output_size, config.layernorm_epsilon)

    def forward(self, input_: torch.Tensor) -> Any:
        """Returns the normalized output, and no bias."""
        output, bias = super().forward(input_)
        return self.post_norm(output), bias


class Chunks(torch.nn.ModuleList):
    """This rank's parts of the model, each a `PackedModel`: one, or one for each round of an interleaved pipeline."""

    @property
    def parts(self) -> list[PackedModel]:
        """The parts, in the order of the rounds."""
        return cast(list[PackedModel], list(self))

    @property
    def config(self) -> TransformerConfig:
        """Megatron's configuration, which all parts share."""
        return self.parts[0].config

    @property
    def trained(self) -> list[torch.nn.Parameter]:
        """The parameters that are trained: all, or those of the adapters."""
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    def sharded_state_dict(self) -> dict[str, Any]:
        """Megatron's description of all parameters, by chunk."""
        return {str(number): part.sharded_state_dict() for number, part in enumerate(self.parts)}


def _layer_spec(architecture: Architecture, *, is_linear: bool) -> ModuleSpec:
    experts = architecture.num_experts or None
    family = architecture.of
    spec = get_gpt_layer_local_spec(num_experts=experts, qk_layernorm=family.qk_norm, normalization="RMSNorm")
    layer: Any = spec.submodules
    layer.input_layernorm = layer.pre_mlp_layernorm = RMSNorm
    if experts:
        layer.mlp.submodules.experts.module = GroupedExperts
        if family.has_biases:
            layer.mlp.submodules.experts.submodules.linear_fc2 = BiasedOutput
    attention = layer.self_attention.submodules
    attention.core_attention = PackedAttention
    attention.linear_qkv, attention.linear_proj = ColumnLinear, RowLinear
    if not experts:
        layer.mlp.submodules.linear_fc1, layer.mlp.submodules.linear_fc2 = ColumnLinear, RowLinear
    if family.qk_norm:
        attention.q_layernorm = attention.k_layernorm = RMSNorm
    if family.post_norms:
        assert not experts, "experts without norms behind them"
        attention.linear_proj = layer.mlp.submodules.linear_fc2 = NormedProduct
    if is_linear:
        layer.self_attention = DELTA_NET
    return spec


def _block_spec(architecture: Architecture, config: TransformerConfig, vp_stage: int | None) -> TransformerBlockSubmodules:
    offset = get_transformer_layer_offset(config, vp_stage)
    numbers = range(offset, offset + get_num_layers_to_build(config, vp_stage))
    kinds = {is_linear: _layer_spec(architecture, is_linear=is_linear) for is_linear in (False, True)}
    if config.fp8:
        fp8.use_engine(kinds[False], str(config.fp8_recipe))
    layers = [kinds[architecture.linear_attention.is_linear(number)] for number in numbers]
    return TransformerBlockSubmodules(layer_specs=layers, layer_norm=RMSNorm)  # type: ignore[arg-type]


def build_model(architecture: Architecture, trainer: TrainerConfig, critic: CriticConfig | None = None) -> Chunks:
    """This rank's part of the model, with weights still to be loaded; with a `critic` whose values it computes, a value head.

    A critic with a model of its own has no other head.
    """
    config = transformer_config(architecture, trainer)
    rounds = trainer.virtual_pipeline_parallel_size
    is_tied = architecture.tie_word_embeddings and (critic is None or critic.place is CriticPlace.trunk)
    chunks = [_build_chunk(architecture, config, number if rounds > 1 else None, is_tied) for number in range(rounds)]
    for chunk in chunks:
        if critic is not None and chunk.post_process:
            _add_value_head(chunk, critic)
    return Chunks(chunks).to(device=device(), dtype=config.params_dtype)


def _add_value_head(model: PackedModel, critic: CriticConfig) -> None:
    on_trunk = critic.place is CriticPlace.trunk
    model.value_head = ValueHead(model.config.hidden_size, gradient_scale=critic.gradient_scale if on_trunk else 1.0)
    if not on_trunk:
        untyped: Any = model
        untyped.output_layer = None


def _build_chunk(architecture: Architecture, config: TransformerConfig, vp_stage: int | None, is_tied: bool) -> PackedModel:
    model = PackedModel(
        config=config,
        transformer_layer_spec=_block_spec(architecture, config, vp_stage),  # type: ignore[arg-type]
        vocab_size=architecture.vocab_size,
        max_sequence_length=architecture.max_position_embeddings,
        pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=vp_stage),
        post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=vp_stage),
        share_embeddings_and_output_weights=is_tied,
        position_embedding_type="rope",
        rotary_base=architecture.rope_theta,  # type: ignore[arg-type]
        rotary_percent=architecture.rotary_share,
        vp_stage=vp_stage,
    )
    model.family, model.value_head = architecture.of, None
    _make_adaptable(model)
    if architecture.rope_scaling:
        scale_rotary(model, architecture)
    if architecture.local_rope_theta:
        model.local_frequencies_D = local_frequencies(architecture).to(device())
    _mark_shards(model)
    if model.post_process:  # `vime.trainer.logprob` gathers the hidden states itself, before it chooses among them
        model.output_layer.sequence_parallel = False
        model.output_layer.allreduce_dgrad = config.tensor_model_parallel_size > 1
    return model


def _make_adaptable(model: PackedModel) -> None:
    """Gives the embedding and the head, which Megatron makes itself, the classes that can have adapters."""
    untyped: Any = model
    made = [(untyped.embedding.word_embeddings, WordEmbedding)] if model.pre_process else []
    made += [(untyped.output_layer, ColumnLinear)] if model.post_process else []
    for layer, kind in made:
        layer.__class__, layer.lora = kind, None


def _mark_shards(model: PackedModel) -> None:
    """Marks parameters that are shards, so that the gradient norm counts all of them; Megatron does so only with random
    initialization, which a loaded model skips. Also marks experts, whose gradients are summed over ranks of their own. Megatron
    does this only with expert parallelism: with sequence parallelism alone, each tensor-parallel rank would keep its tokens'
    gradient. And it marks biases behind experts for one more sum over tensor-parallel ranks.
    """
    for name, parameter in model.named_parameters():
        mapping = names.mapping(name, model.family, layer_offset=0)
        if mapping.layout is not names.Layout.replicated and not getattr(parameter, "tensor_model_parallel", False):
            dim = 1 if mapping.layout is names.Layout.columns else 0
            set_tensor_model_parallel_attributes(parameter, True, dim, 1)
        if mapping.is_expert:
            parameter.allreduce = parameter.sequence_parallel = False  # type: ignore[attr-defined]


def wrap_model(model: Chunks, trainer: TrainerConfig) -> list[DistributedDataParallel]:
    """Megatron's gradient buffers around a loaded model, by chunk; gradients are summed over ranks in float32."""
    ddp_config = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        overlap_grad_reduce=overlaps_reduction(trainer),
        use_distributed_optimizer=num_copies(trainer) > 1,
    )
    config: Any = model.config
    wrapped = [DistributedDataParallel(config, ddp_config, part) for part in model.parts]
    for chunk in wrapped:
        chunk.broadcast_params()
    set_schedule(wrapped)
    return wrapped


def set_schedule(wrapped: list[DistributedDataParallel]) -> None:
    """Makes Megatron's schedule of passes delay and finish the sums of these gradient buffers."""
    config: Any = wrapped[0].config
    config.no_sync_func = [chunk.no_sync for chunk in wrapped] if len(wrapped) > 1 else wrapped[0].no_sync
    config.finalize_model_grads_func = lambda models, *_, **__: finalize_model_grads(models)


def overlaps_reduction(trainer: TrainerConfig) -> bool:
    """True if gradients are summed over copies of the model in buckets, beside the backward pass of an update's last row."""
    wanted = trainer.overlap_gradient_reduction
    return num_copies(trainer) > 1 and (device().type == "cuda" if wanted is None else wanted)


def build_optimizer(wrapped: list[DistributedDataParallel], trainer: TrainerConfig) -> MegatronOptimizer:
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
        use_distributed_optimizer=num_copies(trainer) > 1,
    )
    overrides, has_gloo = get_standard_config_overrides(config), device().type == "cpu"
    optimizer = get_megatron_optimizer(config, list(wrapped), overrides, use_gloo_process_groups=has_gloo)
    for group in optimizer.param_groups:  # Megatron leaves the multiplier to its scheduler, which is not used here
        group["weight_decay"] = trainer.weight_decay * group["wd_mult"]
        # PyTorch's Adam in one pass over memory, on CUDA also without a copy of all second moments; other classes do not look
        group["fused"] = True
    return optimizer
