"""The bytes that a trainer rank's forward pass keeps for its backward pass, computed from the configuration alone.

The formula counts the tensors that autograd saves in the layers; a test holds it to the count on real models. Per token and
layer, with h hidden channels, q those of all query heads and g those of all key heads, w the width of the feed-forward network,
k chosen of E experts of width f, T tensor-parallel ranks and b bytes of the training precision:

- two norms keep their normalized input, and their outputs are the inputs of products: `4·h·b` (over T with sequence parallelism);
  norms behind attention and feed-forward network keep their input, `2·h·b`;
- attention keeps the product of queries, keys and values, rotated queries and keys, and its output in its own order and (where a
  row takes several calls, as almost all do) in that of the row: `(4·q + 3·g)·b/T`, normalized queries and keys as well
  `(q + g)·b/T`, and a float32 number per head (our own kernels in bfloat16 keep less: no rotated ones, and one output);
- a gate of attention keeps the output before it, `q·b/T`, and its sigmoid in float32, `4·q/T`;
- linear attention keeps what it projects of its input, and the input of its last product, `b/T` for each channel; all else is
  computed again in the backward pass, in one layer at a time;
- the feed-forward network keeps both halves before the gate and the gated product, `3·w·b/T`; where the gate is not one fused
  operation (GELU, or `megatron_args.bias_activation_fusion=false`), two more intermediate results;
- experts keep their inputs too, `k·(h + 3·f)·b`, without fusion three more intermediate results of width f, and two more where
  the halves are clamped; their router keeps `5·E + 24·k` bytes.
- with sinks queries, keys, values and the output have 8 more channels and are kept as they are attended to, keys and values
  of local attention, in every second layer, twice: in their block and in the next.

- with `trainer.quantization=int8` the input of a product is kept as integers, a byte for each value and 4 for each token;

- adapters keep their narrow products, `r·b` for each (over T behind row-parallel matrices with sequence parallelism). Then only
  adapted matrices keep their inputs: the outputs of the norms, attention's output in the order of the row, the gated product.
  Pairs of queries, keys and values, and of gate and up projection, are also kept as the blocks that are multiplied.

The sum is multiplied by the number of all layers, because a stage keeps one micro-batch per stage, and by `1 + (S-1)/(S·V)` for V
rounds of an interleaved pipeline of S stages. With recomputation a layer keeps only its input, and one layer keeps everything.

Besides: the last norm, cosines and sines, and the states from which tokens are predicted, at most all of the row, undivided.
"""

from vime.cluster.layout import splits_tokens
from vime.config import LoraTarget, ModelConfig, RunConfig, TrainedQuantization, TrainerConfig
from vime.model.families import family_of
from vime.model.size import (
    BYTES,
    LOGITS_IN_CHUNK,
    LOGITS_IN_CUDA_CHUNK,
    ROW_PARALLEL,
    SINK_CHANNELS,
    STATE_CHUNK,
    adapted_shapes,
)

FLOAT32 = 4
QKV = (LoraTarget.q_proj, LoraTarget.k_proj, LoraTarget.v_proj)
GATE_UP = (LoraTarget.gate_proj, LoraTarget.up_proj)


def activation_bytes(config: RunConfig, num_tokens: int | None = None) -> float:
    """Bytes that one rank keeps for a row of `num_tokens`, by default a full row."""
    trainer = config.trainer
    tokens = trainer.max_tokens_per_micro_batch if num_tokens is None else num_tokens
    return tokens * (_layers(config) + _ends(config)) + _adapter_blocks(config)


def working_bytes(config: RunConfig) -> float:
    """Bytes of temporary tensors: the logits and the head's gradient, or the gradients within one layer if these are more.

    Linear attention is then computed again in float32; the numbers of tensors are those of `vime.trainer.delta_net`.
    """
    model, trainer = config.model, config.trainer
    size, ranks = BYTES[trainer.precision], trainer.tensor_parallel_size
    has_gpu = config.cluster.gpus_per_node > 0
    row = trainer.max_tokens_per_micro_batch * model.vocab_size / ranks
    logits = min(row, LOGITS_IN_CUDA_CHUNK if has_gpu else LOGITS_IN_CHUNK)
    each = 2 * size if has_gpu else size + 3 * FLOAT32  # on a GPU logits and their gradient, in the model's precision
    each += FLOAT32 if config.rollout.num_logprobs else 0  # gradients of several logits of a place, before they are rounded
    head = each * logits + (0 if trainer.lora.rank else size * model.vocab_size * model.hidden_size / ranks)
    width = model.num_experts_per_token * model.moe_intermediate_size if model.num_experts else model.intermediate_size / ranks
    layer = (3 * width + 2 * model.hidden_size) * size + _linear_attention_again(model) / ranks
    return max(head, trainer.max_tokens_per_micro_batch * layer)


def recomputes(trainer: TrainerConfig) -> bool:
    """True if layers store only their inputs and recompute the rest (activation checkpointing)."""
    return trainer.recompute or trainer.megatron_args.get("recompute_granularity") == "full"


def _layers(config: RunConfig) -> float:
    """Bytes per token in all layers."""
    model, trainer = config.model, config.trainer
    num_linear = model.linear_attention.num_linear(model.num_layers)
    others = _norms(model, trainer) + (_experts(config) if model.num_experts else _feed_forward(config)) + _adapters(config)
    full, linear = _attention(model, trainer) + others, (_linear_attention(model, trainer) + others if num_linear else 0.0)
    if recomputes(trainer):
        return model.num_layers * model.hidden_size * BYTES[trainer.precision] / _split(trainer) + max(full, linear)
    stages, rounds = trainer.pipeline_parallel_size, trainer.virtual_pipeline_parallel_size
    layers = (model.num_layers - num_linear) * full + num_linear * linear
    return layers * (1 + (stages - 1) / (stages * rounds) if rounds > 1 else 1)


def keeps_input(trainer: TrainerConfig, *targets: LoraTarget) -> bool:
    """True if a product keeps its input, for the gradient of its weights or of an adapter."""
    return not trainer.lora.rank or any(target in trainer.lora.targets for target in targets)


def _attention(model: ModelConfig, trainer: TrainerConfig) -> float:
    """Bytes per token of a layer's attention."""
    ranks, heads, groups = trainer.tensor_parallel_size, model.num_attention_heads, model.num_key_value_heads
    kept_inputs = _input_bytes(trainer, heads * model.head_dim / ranks) * keeps_input(trainer, LoraTarget.o_proj)
    values, numbers = (3 * heads + 3 * groups) * model.head_dim, float(heads)
    family = family_of(model.family)
    if family.has_sinks:
        values = (2 * heads + 3 * groups) * (model.head_dim + SINK_CHANNELS)
    if family.qk_norm:
        values, numbers = values + (heads + groups) * model.head_dim, numbers + heads + groups
    if family.gates_attention:
        values, numbers = values + heads * model.head_dim, numbers + heads * model.head_dim
    return (values * BYTES[trainer.precision] + numbers * FLOAT32) / ranks + kept_inputs


def _linear_attention(model: ModelConfig, trainer: TrainerConfig) -> float:
    """Bytes per token of a layer of linear attention: all that it projects of its input, and the input of the last product."""
    linear = model.linear_attention
    return (sum(linear.input_parts) + linear.value_width) * BYTES[trainer.precision] / trainer.tensor_parallel_size


def _linear_attention_again(model: ModelConfig) -> float:
    """Bytes per token that a layer of linear attention keeps while it is computed again in the backward pass, in float32."""
    linear = model.linear_attention
    if not linear.num_linear(model.num_layers):
        return 0.0
    keys = (linear.num_key_heads + linear.num_value_heads) * linear.key_head_dim
    states = linear.value_width * linear.key_head_dim / STATE_CHUNK
    return FLOAT32 * (10 * keys + 12 * linear.value_width + states + 6 * STATE_CHUNK * linear.num_value_heads)


def _norms(model: ModelConfig, trainer: TrainerConfig) -> float:
    """Bytes per token of a layer's norms."""
    family = family_of(model.family)
    before_products = keeps_input(trainer, *QKV) + (keeps_input(trainer, *GATE_UP) or bool(model.num_experts))
    norms = family.norms_per_layer * (model.hidden_size * BYTES[trainer.precision] + FLOAT32)  # their inputs
    outputs = before_products * _input_bytes(trainer, model.hidden_size)  # of norms before products
    return (norms + outputs) / _split(trainer)


def _input_bytes(trainer: TrainerConfig, width: float) -> float:
    """Bytes per token of the kept input of a product: values of the run's precision, or integers and their scale."""
    return width + FLOAT32 if trainer.quantization is TrainedQuantization.int8 else width * BYTES[trainer.precision]


def _feed_forward(config: RunConfig) -> float:
    trainer, width = config.trainer, config.model.intermediate_size / config.trainer.tensor_parallel_size
    gated = _input_bytes(trainer, width) * keeps_input(trainer, LoraTarget.down_proj)
    return (2 if _is_fused(config) else 4) * width * BYTES[trainer.precision] + gated


def _experts(config: RunConfig) -> float:
    model, trainer = config.model, config.trainer
    chosen, is_trained = model.num_experts_per_token, not trainer.lora.rank
    is_clamped = family_of(model.family).activation == "quick_gelu"
    channels = (2 if _is_fused(config) else 5 + 2 * is_clamped) + is_trained
    each = (is_trained * model.hidden_size + channels * model.moe_intermediate_size) * BYTES[trainer.precision]
    return (chosen * each + 5 * model.num_experts + 24 * chosen) / _split(trainer)


def _adapters(config: RunConfig) -> float:
    """Bytes per token of the products between the two matrices of each adapter of a layer."""
    trainer = config.trainer
    if not trainer.lora.rank:
        return 0.0
    narrow = sum(
        1.0 / (_split(trainer) if target in ROW_PARALLEL else 1) for target in adapted_shapes(config.model, trainer.lora.targets)
    )
    return narrow * trainer.lora.rank * BYTES[trainer.precision]


def _adapter_blocks(config: RunConfig) -> float:
    """Bytes of the blocks in which the pairs of one Megatron matrix are multiplied together, whatever the number of tokens."""
    model, trainer = config.model, config.trainer
    shapes = adapted_shapes(model, trainer.lora.targets)
    layer = 0.0
    for fused in (QKV, GATE_UP):
        own = [shapes[target] for target in fused if target in shapes]
        outputs = sum(shape[0] for shape in adapted_shapes(model, fused).values())
        if own:
            layer += len(own) * (own[0][1] + outputs / trainer.tensor_parallel_size)
    layers = 1 if recomputes(trainer) else model.num_layers / trainer.pipeline_parallel_size
    return layers * layer * trainer.lora.rank * BYTES[trainer.precision]


def _ends(config: RunConfig) -> float:
    """Bytes per token before and after the layers."""
    model, trainer = config.model, config.trainer
    size = BYTES[trainer.precision]
    rotary_and_ids = model.head_dim * size + 8
    return rotary_and_ids + (model.hidden_size * size + FLOAT32) / _split(trainer) + model.hidden_size * size


def _split(trainer: TrainerConfig) -> int:
    """Number of ranks over which tokens are divided outside attention and feed-forward (sequence parallelism)."""
    return trainer.tensor_parallel_size if splits_tokens(trainer) else 1


def _is_fused(config: RunConfig) -> bool:
    """True if activation and gate are one fused operation, as SiLU's are unless `trainer.megatron_args` says otherwise."""
    return family_of(config.model.family).activation == "silu" and bool(
        config.trainer.megatron_args.get("bias_activation_fusion", True)
    )
