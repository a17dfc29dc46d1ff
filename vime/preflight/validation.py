"""Checks a configuration before anything starts, and reports every problem at once.

A rule is a function `RunConfig -> list[Problem]` in `vime/preflight/rules/`. `mode=plan` may plan for another machine, so it
leaves out the rules about this one (GPUs, ports, files, disk, keys), but for that of the run folder; so does a rehearsal until it
has its own configuration.
"""

from collections.abc import Callable
from dataclasses import replace

from vime.config import TRY, Mode, RunConfig, TrialEngine
from vime.errors import ConfigError, Problem, written
from vime.preflight.rules import (
    batch_sizes,
    critic,
    cuda,
    data,
    deterministic,
    distillation,
    gpu_memory,
    linear_attention,
    lora,
    low_precision,
    machine_requirements,
    method,
    model_shape,
    numbers,
    objective,
    parallel_sizes,
    past_versions,
    retrieval,
    reward_service,
    rollout_settings,
    routing_replay,
    sampling_parameters,
    security,
    serving,
    sinks,
    speculation,
    vllm_arguments,
)

Rule = Callable[[RunConfig], list[Problem]]

RULES: tuple[Rule, ...] = (
    numbers.ranges,
    method.complete,
    method.hooks_fit,
    method.own_rules,
    method.judged,
    method.run_name,
    method.trial,
    machine_requirements.run_folder_can_be_made,
    objective.own_object,
    objective.essence,
    objective.bounds,
    objective.combinations,
    objective.unread_numbers,
    objective.staleness,
    critic.combinations,
    critic.unread,
    distillation.teachers,
    distillation.combinations,
    distillation.unread,
    batch_sizes.updates,
    rollout_settings.partial,
    rollout_settings.compared,
    rollout_settings.group_sizes,
    rollout_settings.own_producer,
    rollout_settings.kept_cache,
    batch_sizes.schedule,
    batch_sizes.evaluation_rows,
    batch_sizes.pass_at,
    batch_sizes.best_checkpoint,
    data.sources,
    data.names,
    data.demonstrations,
    data.generators,
    data.curriculum,
    model_shape.heads,
    model_shape.rotary_embeddings,
    linear_attention.linear_attention,
    sinks.sinks,
    lora.targets,
    lora.delivery,
    lora.together,
    parallel_sizes.trainer_shards,
    parallel_sizes.token_shards,
    parallel_sizes.expert_shards,
    routing_replay.replay,
    parallel_sizes.pipeline,
    parallel_sizes.trainer_gpus,
    parallel_sizes.server_gpus,
    parallel_sizes.cluster_gpus,
    parallel_sizes.weight_transfer,
    parallel_sizes.delta_syncs,
    parallel_sizes.colocation,
    gpu_memory.trainer_fits,
    gpu_memory.at_a_sync,
    parallel_sizes.nodes,
    parallel_sizes.megatron_fields,
    cuda.layouts,
    serving.one_trained,
    serving.urls,
    serving.router,
    serving.ports,
    serving.groups,
    serving.apart,
    serving.elastic,
    serving.chat_endpoints,
    serving.context,
    serving.rotary_embeddings,
    serving.load_format,
    past_versions.past_versions,
    speculation.speculation,
    low_precision.formats,
    low_precision.correction,
    low_precision.training,
    low_precision.floats,
    vllm_arguments.arguments,
    security.arguments,
    sampling_parameters.trained_model,
    sampling_parameters.frozen_models,
    sampling_parameters.kept_tokens,
    sampling_parameters.constraints,
    retrieval.complete,
    retrieval.own_port,
    deterministic.repeatable,
    reward_service.complete,
    reward_service.times,
    reward_service.queue,
)
MACHINE_RULES: tuple[Rule, ...] = (
    machine_requirements.gpus,
    machine_requirements.checkpoint,
    lora.start,
    lora.served,
    low_precision.processor,
    low_precision.engine,
    machine_requirements.served_checkpoints,
    serving.transfer_of_caches,
    distillation.vocabularies,
    distillation.hints,
    distillation.architectures,
    machine_requirements.ports_free,
    machine_requirements.api_keys,
    reward_service.key_is_set,
    machine_requirements.files,
    retrieval.corpus_there,
    retrieval.port_free,
    machine_requirements.run_folder,
    machine_requirements.disk,
    machine_requirements.shared_memory,
    machine_requirements.host_memory,
    machine_requirements.address,
    machine_requirements.interpreter,
    machine_requirements.ray_answers,
    security.reachable,
    machine_requirements.tracker_package,
    machine_requirements.tracker_key,
)
SERVER_SIZES = ("num_replicas", "tensor_parallel_size")
BY_SERVER: tuple[Rule, ...] = (
    parallel_sizes.server_gpus,
    parallel_sizes.weight_transfer,
    parallel_sizes.delta_syncs,
    gpu_memory.trainer_fits,
    gpu_memory.at_a_sync,
    serving.ports,
    machine_requirements.ports_free,
    machine_requirements.shared_memory,
    machine_requirements.host_memory,
)
"""Rules that go through all servers and their GPUs; they are left out while a number of servers is out of range."""
OF_SERVERS: tuple[Rule, ...] = (
    machine_requirements.gpus,
    machine_requirements.ports_free,
    machine_requirements.api_keys,
    machine_requirements.shared_memory,
    machine_requirements.host_memory,
)
"""Rules about this machine that a trial with scripted replies leaves out: it starts no server."""


def find_problems(config: RunConfig) -> list[Problem]:
    """All problems of a configuration, each of them once."""
    if config.rehearse:
        config = replace(config, mode=Mode.plan)
    return _problems_by(RULES if config.mode is Mode.plan else (*RULES, *MACHINE_RULES), config)


def problems_here(config: RunConfig) -> list[Problem]:
    """All problems of a configuration on this machine, including those of a rehearsal's own configuration."""
    return _problems_by((*RULES, *MACHINE_RULES), config)


def _problems_by(rules: tuple[Rule, ...], config: RunConfig) -> list[Problem]:
    if missing := method.chosen(config):
        return missing  # a method brings most other settings
    wrong = [problem.key for problem in numbers.ranges(config)]
    if any(key.startswith("serving.models.") and key.endswith(SERVER_SIZES) for key in wrong):
        rules = tuple(rule for rule in rules if rule not in BY_SERVER)
    if config.mode is TRY and config.trial.engine is TrialEngine.scripted:
        rules = tuple(rule for rule in rules if rule not in OF_SERVERS)
    return found_by(rules, config)


def found_by(rules: tuple[Rule, ...], config: RunConfig) -> list[Problem]:
    """The problems that these rules find, each of them once."""
    return list(dict.fromkeys(_hashable(problem) for rule in rules for problem in rule(config)))


def validate(config: RunConfig) -> None:
    """Raises `ConfigError` with all problems of a configuration, if there are any."""
    problems = find_problems(config)
    if problems:
        raise ConfigError(problems)


def _hashable(problem: Problem) -> Problem:
    if isinstance(problem.value, (list, dict)):
        return Problem(key=problem.key, value=written(problem.value), remedy=problem.remedy)
    return problem
