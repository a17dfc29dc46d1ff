"""Numbers of parameters and bytes of a model, from its shape alone."""

from collections.abc import Iterable

from vime.config import CriticPlace, LoraConfig, LoraTarget, ModelConfig, Precision, Quantization, TrainerConfig
from vime.model.families import family_of

BYTES = {Precision.float32: 4, Precision.bfloat16: 2}
ROW_PARALLEL = (LoraTarget.o_proj, LoraTarget.down_proj)
"""Matrices that tensor parallelism cuts along their inputs."""
STATE_CHUNK = 64
"""Tokens of a chunk of linear attention. Products within it grow with its square, and longer ones take fewer steps."""
SINK_CHANNELS = 8
"""Channels that heads get for a sink, which takes the first: kernels on CUDA want multiples of 8."""
LOGITS_IN_CHUNK = 2**26
"""Logits that the trainer computes at once on a CPU: 256 MiB in float32."""
LOGITS_IN_CUDA_CHUNK = 2**28
"""Logits that the trainer computes at once on a GPU, where they are never held in float32: 512 MiB in bfloat16. Each chunk adds
to the gradient of the head's weight once, and with small chunks this takes longer than the products."""


def num_parameters(model: ModelConfig) -> int:
    """All parameters: embeddings, and per layer attention, feed-forward (or all experts and their router) and norms."""
    hidden, family = model.hidden_size, family_of(model.family)
    if model.num_experts:
        feed_forward = model.num_experts * (3 * hidden * model.moe_intermediate_size + hidden)
        feed_forward += family.has_biases * model.num_experts * (2 * model.moe_intermediate_size + hidden + 1)
    else:
        feed_forward = 3 * hidden * model.intermediate_size
    embeddings = hidden * model.vocab_size * (1 if model.tie_word_embeddings else 2)
    layers = model.num_layers * (feed_forward + family.norms_per_layer * hidden)
    return embeddings + num_attention_parameters(model) + layers + hidden


def served_bytes(model: ModelConfig, precision: Precision, quantization: Quantization) -> float:
    """Bytes of a server's weights: those of linear layers take one byte each if they are quantized, embedding and head do not."""
    if quantization is Quantization.none:
        return num_parameters(model) * BYTES[precision]
    embeddings = model.hidden_size * model.vocab_size * (1 if model.tie_word_embeddings else 2)
    return num_parameters(model) + embeddings * (BYTES[precision] - 1)


def num_expert_parameters(model: ModelConfig) -> int:
    """Number of parameters in experts, without routers."""
    biases = family_of(model.family).has_biases * (2 * model.moe_intermediate_size + model.hidden_size)
    return model.num_layers * model.num_experts * (3 * model.hidden_size * model.moe_intermediate_size + biases)


def num_attention_parameters(model: ModelConfig) -> int:
    """Number of parameters of attention, which `algorithm.critic.place=frozen_attention` does not train."""
    hidden, width, family, linear = model.hidden_size, model.head_dim, family_of(model.family), model.linear_attention
    queries, keys = model.num_attention_heads * width, model.num_key_value_heads * width
    biases = (queries + 2 * keys if family.qkv_bias else 0) + family.has_biases * hidden
    biases += family.has_sinks * model.num_attention_heads
    norms = 2 * width if family.qk_norm else 0
    gates = hidden * queries if family.gates_attention else 0
    projected = hidden * (sum(linear.input_parts) + linear.value_width)
    state = 2 * linear.num_value_heads + linear.value_head_dim + sum(linear.input_parts[:3]) * linear.conv_kernel
    num_linear = linear.num_linear(model.num_layers)
    full = (model.num_layers - num_linear) * (2 * hidden * (queries + keys) + gates + biases + norms)
    return full + num_linear * (projected + state)


def num_critic_parameters(model: ModelConfig, place: CriticPlace) -> tuple[int, int]:
    """Parameters that a critic adds, all and those that are trained: a value head, or a model that has no other."""
    if place is CriticPlace.none:
        return 0, 0
    if place is CriticPlace.trunk:
        return model.hidden_size, model.hidden_size
    head = 0 if model.tie_word_embeddings else model.vocab_size * model.hidden_size
    whole = num_parameters(model) - head + model.hidden_size
    return whole, whole - (num_attention_parameters(model) if place is CriticPlace.frozen_attention else 0)


def adapted_shapes(model: ModelConfig, targets: Iterable[LoraTarget]) -> dict[LoraTarget, tuple[int, int]]:
    """Outputs and inputs of the matrices of a layer that get an adapter; experts have none."""
    hidden, width = model.hidden_size, model.intermediate_size
    queries, keys = (heads * model.head_dim for heads in (model.num_attention_heads, model.num_key_value_heads))
    shapes = {
        LoraTarget.q_proj: (queries, hidden),
        LoraTarget.k_proj: (keys, hidden),
        LoraTarget.v_proj: (keys, hidden),
        LoraTarget.o_proj: (hidden, queries),
    }
    if not model.num_experts:
        shapes |= {LoraTarget.gate_proj: (width, hidden), LoraTarget.up_proj: (width, hidden)}
        shapes |= {LoraTarget.down_proj: (hidden, width)}
    return {target: shapes[target] for target in targets if target in shapes}


def vocabulary_shapes(model: ModelConfig, targets: Iterable[LoraTarget]) -> dict[LoraTarget, tuple[int, int]]:
    """Outputs and inputs of the embedding and the head, where they get an adapter."""
    shapes = {
        LoraTarget.embed_tokens: (model.hidden_size, model.vocab_size),
        LoraTarget.lm_head: (model.vocab_size, model.hidden_size),
    }
    return {target: shapes[target] for target in targets if target in shapes}


def unties(model: ModelConfig, lora: LoraConfig) -> bool:
    """True if embedding and head share a matrix, but with adapters differ from each other: merged, they are two."""
    return bool(lora.rank and model.tie_word_embeddings and vocabulary_shapes(model, lora.targets))


def num_trained_parameters(model: ModelConfig, trainer: TrainerConfig) -> int:
    """Parameters that are trained: all, or those of the adapters."""
    if not trainer.lora.rank:
        return num_parameters(model)
    lora = trainer.lora
    in_layers = model.num_layers * sum(map(sum, adapted_shapes(model, lora.targets).values()))
    return lora.rank * (in_layers + sum(map(sum, vocabulary_shapes(model, lora.targets).values())))


def checkpoint_bytes(model: ModelConfig, trainer: TrainerConfig, critic: CriticPlace = CriticPlace.none) -> int:
    """Bytes of one checkpoint of a run: the trained weights in float32 and their two moments, those of a critic too."""
    return (num_trained_parameters(model, trainer) + num_critic_parameters(model, critic)[1]) * 12


def kv_bytes_per_token(model: ModelConfig, precision: Precision) -> int:
    """Keys and values of one token over all layers; those of linear attention have none."""
    num_layers = model.num_layers - model.linear_attention.num_linear(model.num_layers)
    return 2 * num_layers * model.num_key_value_heads * model.head_dim * BYTES[precision]


def state_bytes(model: ModelConfig, precision: Precision) -> int:
    """The state of one sequence in all layers of linear attention, in float32, and the last tokens of their convolutions."""
    linear = model.linear_attention
    state = linear.value_width * linear.key_head_dim * BYTES[Precision.float32]
    before = sum(linear.input_parts[:3]) * max(linear.conv_kernel - 1, 0) * BYTES[precision]
    return linear.num_linear(model.num_layers) * (state + before)
