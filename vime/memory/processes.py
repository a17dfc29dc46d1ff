"""Memory of a trainer rank and of a server, in bytes, from the configuration alone.

Formulas, with P parameters, X of them in experts, b bytes of the training precision, T tensor-, S pipeline-, D data-, C context-
and E expert-parallel sizes:

- with adapters (LoRA) gradients, optimizer, reference and averages are those of the adapters alone, and the weights are both;
- weights of a trainer rank: `b·R` with `R = (P - X)/(T·S) + X/(E·S)`; gradients: `4·R` (float32); optimizer
  (float32 copy and two moments): `12·(P - X)/(T·S·D·C) + 12·X/(S·T·D·C)`, because it is divided over copies; a reference model
  for the KL takes `b·R` of host memory, with or without GPUs;
- a critic with a model of its own takes weights, gradients and optimizer like the policy's, without the head over the vocabulary,
  and with `frozen_attention` neither gradients nor optimizer of attention;
- activations: what the forward pass keeps for the backward pass, and what comes and goes on top (`vime.memory.activations`);
- host memory of a rank on GPUs that it shares with servers, page-locked: what it keeps there while they work, `b·R` and the
  optimizer; and `b·R` for the reference;
- the optimizer's step takes nothing on top, because Adam is fused;
- a reserve on each GPU, for what no formula counts: a context and NCCL's buffers of each process, including sleeping ones;
- weights of a server: `b·P / T_server`; the KV cache has what is left of `gpu_memory_utilization`, at
  `2·layers·kv_heads·head_dim·b / T_server` bytes per token.
"""

from collections import Counter
from dataclasses import replace

from vime.algorithm.algorithm import Weights
from vime.algorithm.choice import second_weights
from vime.cluster.layout import num_copies, num_expert_copies
from vime.cluster.placement import memory_share, sends_adapters, server_places, takes_turns
from vime.config import OWN_MODEL, AlgorithmName, LoraTarget, Mode, RunConfig, ServedModelConfig, policies
from vime.machine import memory_bytes
from vime.memory.activations import activation_bytes, working_bytes
from vime.model.size import (
    BYTES,
    ROW_PARALLEL,
    adapted_shapes,
    num_critic_parameters,
    num_expert_parameters,
    num_parameters,
    served_bytes,
    unties,
    vocabulary_shapes,
)

GIB = 2**30
TRAINER_RESERVE = 3.0 * GIB
"""Memory reserved for a trainer rank beside its tensors. For one rank 2.1 to 2.8 GiB were measured on an H100 and an H200: a
context 0.6, NCCL 0.5, the rest kernels and workspaces of libraries (`tools/gpu_check.py`); with more ranks NCCL takes more."""
SLEEPER_RESERVE = 1.0 * GIB
"""Memory that a sleeping server does not give back: a context (0.6 GiB in a trainer rank), NCCL's buffers and captured graphs. It
was not measured on a server."""


def trainer_memory(config: RunConfig) -> dict[str, float]:
    """Bytes of one trainer rank by purpose, for example `{"weights": …, "gradients": …}`."""
    model, trainer = config.model, config.trainer
    stages, size = trainer.pipeline_parallel_size, BYTES[trainer.precision]
    experts = num_expert_parameters(model) / (trainer.expert_parallel_size * stages)
    others = (num_parameters(model) - num_expert_parameters(model)) / (trainer.tensor_parallel_size * stages)
    weights = others + experts
    if trainer.lora.rank:
        others, experts = sum(adapter_parameters(policy) for policy in policies(config).values()), 0.0
        weights += others
    second = 0.0 if config.cluster.gpus_per_node else second_weight_bytes(config, others + experts)
    return {
        "weights": weights * size,
        "gradients": (others + experts) * 4,
        "optimizer": 12 * (others / num_copies(trainer) + experts / num_expert_copies(trainer)),
        "reference": second,  # running averages and teachers
        "critic": sum(critic_memory(config).values()),
        "activations": activation_bytes(config),
        "working memory": working_bytes(config),
    }


def critic_memory(config: RunConfig) -> dict[str, float]:
    """Bytes of the critic's model on one trainer rank: its weights, gradients and optimizer; 0 without a model of its own.

    Its activations are not held at the same time as the policy's.
    """
    model, trainer, place = config.model, config.trainer, config.algorithm.critic.place
    if place not in OWN_MODEL:
        return {}
    whole, trained = num_critic_parameters(model, place)
    in_experts = num_expert_parameters(model)
    stages, tensor = trainer.pipeline_parallel_size, trainer.tensor_parallel_size
    experts = in_experts / (trainer.expert_parallel_size * stages)
    others, learning = (number - in_experts for number in (whole, trained))
    others, learning = others / (tensor * stages), learning / (tensor * stages)
    return {
        "weights": (others + experts) * BYTES[trainer.precision],
        "gradients": (learning + experts) * 4,
        "optimizer": 12 * (learning / num_copies(trainer) + experts / num_expert_copies(trainer)),
    }


def adapter_parameters(config: RunConfig) -> float:
    """Parameters of the adapters on one trainer rank: of each pair, one matrix is cut over tensor-parallel ranks.

    The embedding and the head count as if they were on the same rank.
    """
    trainer, model, targets = config.trainer, config.model, config.trainer.lora.targets
    share = model.num_layers / trainer.pipeline_parallel_size
    of_layers, once = adapted_shapes(model, targets), vocabulary_shapes(model, targets)
    total = 0.0
    for target, (outputs, inputs) in (of_layers | once).items():
        cut, whole = (inputs, outputs) if target in (*ROW_PARALLEL, LoraTarget.embed_tokens) else (outputs, inputs)
        total += (share if target in of_layers else 1) * trainer.lora.rank * (cut / trainer.tensor_parallel_size + whole)
    return total


def host_memory(config: RunConfig) -> dict[str, float]:
    """Bytes of page-locked host memory of one trainer rank by purpose; empty without GPUs."""
    if not config.cluster.gpus_per_node:
        return {}
    rank = trainer_memory(config)
    kept = {"weights": rank["weights"], "optimizer": rank["optimizer"]} if takes_turns(config) else {}
    if kept and (critic := critic_memory(config)):
        kept["critic"] = critic["weights"] + critic["optimizer"]
    second = second_weight_bytes(config, rank["gradients"] / 4)
    return kept | ({"reference": second} if second else {})


def second_weight_bytes(config: RunConfig, num_parameters: float) -> float:
    """Bytes of the second weights of a rank with `num_parameters` trained ones: the reference, averages in float32."""
    sizes = [4 if need.weights is Weights.average else BYTES[config.trainer.precision] for need in second_weights(config)]
    return sum(sizes) * num_parameters


def reserved_bytes(config: RunConfig) -> float:
    """Bytes reserved on a trainer rank's GPU for memory that no formula counts; 0 without GPUs."""
    if not config.cluster.gpus_per_node:
        return 0.0
    sleepers = 0
    if takes_turns(config) and config.algorithm.name is not AlgorithmName.sft:
        on_gpu = Counter((place.node, gpu) for places in server_places(config).values() for place in places for gpu in place.gpus)
        sleepers = max(on_gpu.values(), default=0)
    return TRAINER_RESERVE + sleepers * SLEEPER_RESERVE


def is_untied(config: RunConfig, model: ServedModelConfig) -> bool:
    """True if the servers of a model get embedding and head apart, which its checkpoint has as one: merged, they differ."""
    trains = model.gets_weights and config.mode is not Mode.eval and not sends_adapters(config)
    return trains and unties(config.model, config.trainer.lora)


def server_memory(config: RunConfig, model: ServedModelConfig) -> dict[str, float]:
    """Bytes of one server by purpose, on each of its GPUs or, without GPUs, in the process.

    The weights of a frozen model are 0, because the configuration does not tell its size; on a GPU they are part of "KV cache".
    """
    total = config.cluster.gpu_memory_gib * GIB if config.cluster.gpus_per_node else memory_bytes()
    budget = memory_share(config, model) * total
    own = model.trained or model.checkpoint in (None, config.model.checkpoint)
    model_of_servers = replace(config.model, tie_word_embeddings=False) if is_untied(config, model) else config.model
    whole = served_bytes(model_of_servers, config.trainer.precision, model.quantization) if own else 0.0
    weights = whole / model.tensor_parallel_size
    cache = budget if not config.cluster.gpus_per_node else max(0.0, budget - weights)
    return {"weights": weights, "KV cache": cache}
