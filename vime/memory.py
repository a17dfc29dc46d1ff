"""Memory of a trainer rank and of a server, in bytes, from the configuration alone.

Formulas, with P parameters, X of them in experts, b bytes of the training precision, T tensor-, S pipeline-, D data-, C context-
and E expert-parallel sizes:

- weights of a trainer rank: `b·R` with `R = (P - X)/(T·S) + X/(E·S)`; gradients: `4·R` (float32); a reference model for the KL:
  `b·R`; optimizer (float32 copy and two moments): `12·(P - X)/(T·S·D·C) + 12·X/(S·T·D·C)`, because it is divided over copies;
- activations of a layer per token of a rank's row (arXiv 2205.05198, table 2, with flash attention), in 16 bit:
  `10·h + 24·h/T` bytes, with sequence parallelism `34·h/T`; k experts of width f instead of one network of width 4·h:
  `15·h + k·(4·h + 6·f)` in place of `34·h`. Times all layers, because a stage keeps as many micro-batches as there are stages,
  and `1 + (S-1)/(S·V)` for V rounds of an interleaved pipeline. With recomputation `2·h` a layer (over T with sequence
  parallelism) and one layer whole. In 32 bit all of it twice;
- logits: 12 bytes (logits, exponentials, gradient) for each of a chunk;
- weights of a server: `b·P / T_server`; the KV cache has what is left of `gpu_memory_utilization`, at
  `2·layers·kv_heads·head_dim·b / T_server` bytes per token.
"""

import psutil

from vime.config import RunConfig, ServedModelConfig
from vime.layout import num_copies, num_expert_copies
from vime.model_size import BYTES, LOGITS_IN_CHUNK, num_expert_parameters, num_parameters

GIB = 2**30


def trainer_memory(config: RunConfig) -> dict[str, float]:
    """Bytes of one trainer rank by what they hold."""
    model, trainer = config.model, config.trainer
    stages, size = trainer.pipeline_parallel_size, BYTES[trainer.precision]
    experts = num_expert_parameters(model) / (trainer.expert_parallel_size * stages)
    others = (num_parameters(model) - num_expert_parameters(model)) / (trainer.tensor_parallel_size * stages)
    logits = trainer.max_tokens_per_micro_batch * model.vocab_size / trainer.tensor_parallel_size
    return {
        "weights": (others + experts) * size,
        "gradients": (others + experts) * 4,
        "optimizer": 12 * (others / num_copies(trainer) + experts / num_expert_copies(trainer)),
        "reference": (others + experts) * size if config.algorithm.kl_coefficient else 0.0,
        "activations": trainer.max_tokens_per_micro_batch * _activations_per_token(config) * size / 2,
        "logits": 12 * min(logits, LOGITS_IN_CHUNK),
    }


def _activations_per_token(config: RunConfig) -> float:
    """Bytes in 16 bit that all layers keep for the backward pass, per token of a rank's row."""
    model, trainer = config.model, config.trainer
    hidden, ranks = model.hidden_size, trainer.tensor_parallel_size
    split = ranks if trainer.sequence_parallel else 1
    layer = hidden * (10 / split + 24 / ranks)
    if model.num_experts:
        chosen = model.num_experts_per_token * (4 * hidden + 6 * model.moe_intermediate_size)
        layer = hidden * (6 / split + 9 / ranks) + chosen / split
    if trainer.recompute or trainer.megatron_args.get("recompute_granularity") == "full":
        return model.num_layers * 2 * hidden / split + layer
    stages, rounds = trainer.pipeline_parallel_size, trainer.virtual_pipeline_parallel_size
    return model.num_layers * layer * (1 + (stages - 1) / (stages * rounds) if rounds > 1 else 1)


def server_memory(config: RunConfig, model: ServedModelConfig) -> dict[str, float]:
    """Bytes per GPU (or of the process, on a CPU) of one server; a frozen model's weights are not known here."""
    total = config.cluster.gpu_memory_gib * GIB if config.cluster.gpus_per_node else psutil.virtual_memory().total
    budget = model.gpu_memory_utilization * total
    own = model.trained or model.checkpoint in (None, config.model.checkpoint)
    weights = num_parameters(config.model) * BYTES[config.trainer.precision] / model.tensor_parallel_size if own else 0.0
    cache = budget if not config.cluster.gpus_per_node else max(0.0, budget - weights)
    return {"weights": weights, "KV cache": cache}
