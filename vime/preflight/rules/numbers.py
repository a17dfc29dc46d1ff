"""Ranges of single numbers."""

import math
from dataclasses import dataclass
from typing import Any

from vime.config import AlgorithmName, Baseline, RunConfig
from vime.errors import Problem


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    """Bounds of a number; `above` is exclusive. Example: `Range(above=0)` for a learning rate."""

    least: float | None = None
    above: float | None = None
    most: float | None = None

    def remedy(self, value: float) -> str | None:
        """What to give instead, None if the value fits."""
        if not math.isfinite(value):
            return "give a finite number"
        if self.least is not None and value < self.least:
            return f"give at least {self.least:g}"
        if self.above is not None and value <= self.above:
            return f"give more than {self.above:g}"
        if self.most is not None and value > self.most:
            return f"give at most {self.most:g}"
        return None


COUNT, NATURAL, POSITIVE, SHARE = Range(least=1), Range(least=0), Range(above=0), Range(least=0, most=1)
RANGES: dict[str, Range] = {
    "seed": NATURAL,
    **{f"model.{name}": COUNT for name in ("num_layers", "hidden_size", "num_attention_heads", "num_key_value_heads")},
    **{f"model.{name}": COUNT for name in ("head_dim", "intermediate_size", "vocab_size", "max_position_embeddings")},
    **{f"model.{name}": NATURAL for name in ("num_experts", "num_experts_per_token", "moe_intermediate_size")},
    **{f"algorithm.{name}": SHARE for name in ("clip_low",)},
    **{f"algorithm.{name}": NATURAL for name in ("clip_high", "kl_coefficient", "overlong_buffer_tokens")},
    **{f"algorithm.{name}": COUNT for name in ("constant_tokens", "overlong_max_tokens")},
    "algorithm.dual_clip": Range(above=1),
    **{f"algorithm.correction.{name}": NATURAL for name in ("low", "veto")},
    "algorithm.correction.high": POSITIVE,
    "algorithm.entropy_coefficient": Range(),
    **{f"trainer.{name}": COUNT for name in ("num_steps", "num_updates_per_batch", "max_tokens_per_micro_batch")},
    **{f"trainer.{name}": COUNT for name in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")},
    **{f"trainer.{name}": COUNT for name in ("virtual_pipeline_parallel_size", "context_parallel_size", "expert_parallel_size")},
    **{f"trainer.{name}": COUNT for name in ("sft_tokens_per_step", "save_every", "keep_checkpoints", "num_epochs_per_batch")},
    **{f"trainer.{name}": NATURAL for name in ("warmup_steps", "min_lr", "weight_decay", "num_threads", "evaluate_every")},
    **{f"trainer.{name}": POSITIVE for name in ("lr", "clip_grad")},
    **{f"trainer.{name}": Range(least=0, most=0.99999) for name in ("adam_beta1", "adam_beta2")},
    **{f"rollout.{name}": COUNT for name in ("num_prompts", "num_samples_per_prompt", "num_workers")},
    "rollout.max_concurrent_rollouts": COUNT,
    "rollout.min_rollouts_per_group": COUNT,
    **{f"rollout.{name}": NATURAL for name in ("max_staleness", "max_retries", "max_reward_retries", "max_tool_retries")},
    **{f"rollout.{name}": NATURAL for name in ("max_sandbox_retries", "max_group_repeats")},
    **{f"rollout.num_oversampled_{name}": NATURAL for name in ("prompts", "samples_per_prompt")},
    **{f"rollout.{name}_timeout_seconds": POSITIVE for name in ("generate", "reward", "tool", "sandbox")},
    "rollout.max_blocked_seconds": POSITIVE,
    **{f"rollout.{name}": SHARE for name in ("max_infrastructure_failure_share", "max_filtered_share")},
    "logger.trace_share": SHARE,
    **{f"logger.max_{name}_bytes": Range(least=2**20) for name in ("rollouts", "trace")},
    **{f"serving.{name}": POSITIVE for name in ("start_timeout_seconds", "max_start_seconds")},
    "serving.silence_timeout_seconds": Range(least=10),  # twice the time between two signs of life of our servers
    **{f"serving.{name}": POSITIVE for name in ("health_interval_seconds", "recovery_timeout_seconds")},
    "serving.engine_timeout_seconds": POSITIVE,
    "serving.probe_tolerance": POSITIVE,
    "serving.health_failures": COUNT,
    "serving.max_restarts": NATURAL,
    "serving.restart_window_seconds": POSITIVE,
    **{f"reward_service.{name}": COUNT for name in ("max_batch_size", "max_concurrent_requests", "max_pending")},
    **{f"reward_service.{name}": NATURAL for name in ("max_batch_wait_seconds", "max_retries")},
    **{f"reward_service.{name}": POSITIVE for name in ("max_requests_per_minute", "request_timeout_seconds")},
    **{f"sandbox.{name}": POSITIVE for name in ("wall_seconds", "cpu_seconds")},
    "sandbox.memory_bytes": Range(least=32 * 2**20),
    **{f"sandbox.{name}": COUNT for name in ("num_processes", "file_bytes", "output_characters")},
    "cluster.num_nodes": COUNT,
    **{f"cluster.{name}": NATURAL for name in ("gpus_per_node", "num_trainer_gpus", "num_server_gpus", "num_frozen_gpus")},
    "cluster.gpu_memory_gib": POSITIVE,
    **{f"evaluation.{name}": COUNT for name in ("num_runs", "max_concurrent_items")},
    "evaluation.temperature": NATURAL,
    "evaluation.top_p": Range(above=0, most=1),
}
MODEL_RANGES: dict[str, Range] = {
    **{name: Range(least=1, most=1024) for name in ("num_replicas", "tensor_parallel_size")},
    **{name: COUNT for name in ("max_model_len", "max_num_seqs")},
    "port": Range(least=0, most=65535),
    "gpu_memory_utilization": Range(above=0, most=1),
    "chat.max_requests_per_minute": POSITIVE,
    "chat.max_concurrent_requests": COUNT,
    "chat.request_timeout_seconds": POSITIVE,
    **{f"chat.{name}": NATURAL for name in ("max_retries", "dollars_per_million_input_tokens")},
    "chat.dollars_per_million_output_tokens": NATURAL,
    "sampling.temperature": NATURAL,
    "sampling.top_p": Range(above=0, most=1),
    "sampling.top_k": COUNT,
    "sampling.min_p": SHARE,
    **{f"sampling.{name}_penalty": Range(least=-2, most=2) for name in ("presence", "frequency")},
    "sampling.repetition_penalty": POSITIVE,
}
GROUP_KEYS = ("num_replicas", "tensor_parallel_size", "max_num_seqs", "port", "gpu_memory_utilization")


def ranges(config: RunConfig) -> list[Problem]:
    """Every number lies where it can mean something."""
    problems = [problem for key, allowed in RANGES.items() for problem in _check(key, value_at(config, key), allowed)]
    for name, model in config.serving.models.items():
        for key, allowed in MODEL_RANGES.items():
            problems += _check(f"serving.models.{name}.{key}", value_at(model, key), allowed)
        for group_name, group in model.groups.items():
            for key in GROUP_KEYS:
                problems += _check(f"serving.models.{name}.groups.{group_name}.{key}", getattr(group, key), MODEL_RANGES[key])
    for position, dataset in enumerate(config.data.evaluation):
        problems += _check(f"data.evaluation.{position}.num_items", dataset.num_items, COUNT)
    for position, temperature in enumerate(config.evaluation.extra_temperatures):
        problems += _check(f"evaluation.extra_temperatures.{position}", temperature, NATURAL)
    return problems + _check("data.train.num_items", config.data.train.num_items, COUNT)


def sampling(config: RunConfig) -> list[Problem]:
    """Training samples from the whole distribution: no top-p, no temperature 0."""
    problems = []
    if config.rollout.top_p != 1.0:
        remedy = "training needs 1.0: the tokens that top-p cuts off are not known to the trainer, so its logprobs would be wrong"
        problems.append(Problem(key="rollout.top_p", value=config.rollout.top_p, remedy=remedy))
    if config.rollout.temperature <= 0:
        remedy = "give more than 0: without sampling, all rollouts of a group are equal and nothing can be learned"
        problems.append(Problem(key="rollout.temperature", value=config.rollout.temperature, remedy=remedy))
    algorithm = config.algorithm
    compares = algorithm.name is not AlgorithmName.sft and algorithm.advantage is None and algorithm.baseline is not Baseline.none
    if compares and config.rollout.num_samples_per_prompt == 1:
        remedy = "give at least 2: a rollout is compared with the others of its group, so a single one has no advantage"
        problems.append(Problem(key="rollout.num_samples_per_prompt", value=1, remedy=remedy))
    return problems


def value_at(config: object, key: str) -> Any:
    """The value at a dotted key."""
    value: Any = config
    for name in key.split("."):
        value = getattr(value, name)
    return value


def _check(key: str, value: float | None, allowed: Range) -> list[Problem]:
    remedy = allowed.remedy(value) if value is not None else None
    return [Problem(key=key, value=value, remedy=remedy)] if remedy else []
