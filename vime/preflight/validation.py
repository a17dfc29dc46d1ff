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
    algorithm,
    batch,
    cuda,
    data,
    deterministic,
    engine,
    lora,
    machine,
    memory,
    method,
    models,
    numbers,
    parallel,
    retrieval,
    reward_service,
    rollout,
    sampling,
    security,
    serving,
)

Rule = Callable[[RunConfig], list[Problem]]

RULES: tuple[Rule, ...] = (
    numbers.ranges,
    method.complete,
    method.hooks_fit,
    method.own_rules,
    method.run_name,
    method.trial,
    machine.run_folder_can_be_made,
    algorithm.own_object,
    algorithm.essence,
    algorithm.bounds,
    algorithm.combinations,
    algorithm.staleness,
    batch.updates,
    rollout.partial,
    rollout.compared,
    rollout.group_sizes,
    rollout.own_producer,
    rollout.kept_cache,
    batch.schedule,
    batch.evaluation_rows,
    batch.pass_at,
    batch.best_checkpoint,
    data.sources,
    data.names,
    data.demonstrations,
    data.generators,
    models.heads,
    models.rotary_embeddings,
    lora.targets,
    lora.delivery,
    parallel.trainer_shards,
    parallel.token_shards,
    parallel.expert_shards,
    parallel.pipeline,
    parallel.trainer_gpus,
    parallel.server_gpus,
    parallel.cluster_gpus,
    parallel.weight_transfer,
    parallel.turns,
    memory.trainer_fits,
    memory.at_a_sync,
    parallel.nodes,
    parallel.megatron_fields,
    cuda.layouts,
    serving.one_trained,
    serving.urls,
    serving.router,
    serving.ports,
    serving.groups,
    serving.chat_endpoints,
    serving.context,
    serving.rotary_embeddings,
    serving.load_format,
    serving.speculation,
    engine.arguments,
    security.arguments,
    sampling.trained_model,
    sampling.frozen_models,
    sampling.constraints,
    retrieval.complete,
    retrieval.own_port,
    deterministic.repeatable,
    reward_service.complete,
    reward_service.times,
    reward_service.queue,
)
MACHINE_RULES: tuple[Rule, ...] = (
    machine.gpus,
    machine.checkpoint,
    lora.start,
    lora.served,
    machine.served_checkpoints,
    machine.ports_free,
    machine.api_keys,
    reward_service.key_is_set,
    machine.files,
    retrieval.corpus_there,
    retrieval.port_free,
    machine.run_folder,
    machine.disk,
    machine.shared_memory,
    machine.host_memory,
    machine.address,
    machine.interpreter,
    machine.ray_answers,
    security.reachable,
    machine.tracker_package,
    machine.tracker_key,
)
SERVER_SIZES = ("num_replicas", "tensor_parallel_size")
BY_SERVER: tuple[Rule, ...] = (
    parallel.server_gpus,
    parallel.weight_transfer,
    memory.trainer_fits,
    memory.at_a_sync,
    serving.ports,
    machine.ports_free,
    machine.shared_memory,
    machine.host_memory,
)
"""Rules that go through all servers and their GPUs; they are left out while a number of servers is out of range."""
OF_SERVERS: tuple[Rule, ...] = (
    machine.gpus,
    machine.ports_free,
    machine.api_keys,
    machine.shared_memory,
    machine.host_memory,
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
