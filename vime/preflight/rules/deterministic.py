"""`deterministic=true` refuses every setting that can make two runs of one seed differ."""

from collections.abc import Iterator

from vime.config import ModelAPI, RunConfig, ServedModelConfig, ServerRole, SpeculationMethod
from vime.errors import Problem


def repeatable(config: RunConfig) -> list[Problem]:
    """Nothing in generation, serving or training depends on time or on external programs."""
    if not config.deterministic:
        return []
    return [*_generation(config), *_training(config), *_servers(config)]


def _has_gpus(config: RunConfig) -> bool:
    return config.cluster.gpus_per_node > 0


def _generation(config: RunConfig) -> Iterator[Problem]:
    rollout = config.rollout
    if rollout.max_staleness:
        remedy = "with deterministic=true the weights that sample a token must not depend on time: use 0"
        yield Problem(key="rollout.max_staleness", value=rollout.max_staleness, remedy=remedy)
    for name in ("num_oversampled_prompts", "num_oversampled_samples_per_prompt"):
        if value := getattr(rollout, name):
            remedy = "with deterministic=true the rollouts of a batch must not depend on which finish first: use 0"
            yield Problem(key=f"rollout.{name}", value=value, remedy=remedy)
    if rollout.filter:
        remedy = "with deterministic=true the prompt that replaces a filtered group must not depend on time: use null"
        yield Problem(key="rollout.filter", value=rollout.filter, remedy=remedy)
    for name in ("producer", "group_function"):
        if value := getattr(rollout, name):
            remedy = (
                "with deterministic=true the orchestration must be repeatable, which vime cannot check for your own: use null"
            )
            yield Problem(key=f"rollout.{name}", value=value, remedy=remedy)


def _training(config: RunConfig) -> Iterator[Problem]:
    if not _has_gpus(config) and config.model.num_experts:
        remedy = (
            "with deterministic=true on a CPU, results of experts would depend on the batch of a server: choose a dense model"
        )
        yield Problem(key="model.num_experts", value=config.model.num_experts, remedy=remedy)


def _servers(config: RunConfig) -> Iterator[Problem]:
    for name, model in config.serving.models.items():
        key = f"serving.models.{name}"
        if model.api is ModelAPI.chat or model.urls:
            remedy = (
                "with deterministic=true an external server may batch requests of others with ours: remove this, so that the "
                "run starts it"
            )
            yield Problem(key=f"{key}.urls", value=model.urls, remedy=remedy)
        yield from _server_arguments(key, model, is_on_cpu=not _has_gpus(config))
        for group_name, group in model.groups.items():
            if group.role is not ServerRole.regular:
                remedy = "deterministic=true has not been verified for prefill and decode servers: use regular"
                yield Problem(key=f"{key}.groups.{group_name}.role", value=group.role.value, remedy=remedy)


def _server_arguments(key: str, model: ServedModelConfig, *, is_on_cpu: bool) -> Iterator[Problem]:
    if model.speculative.method is not SpeculationMethod.none:
        remedy = "with deterministic=true speculative decoding would depend on the batch of a server: use none"
        yield Problem(key=f"{key}.speculative.method", value=model.speculative.method.value, remedy=remedy)
    given = {f"{key}.vllm_args": model.vllm_args}
    given |= {f"{key}.groups.{name}.vllm_args": group.vllm_args for name, group in model.groups.items()}
    for where, arguments in given.items():
        for argument, value in arguments.items():
            if argument.replace("-", "_") == "speculative_config" and value:
                remedy = "with deterministic=true speculative decoding would depend on the batch of a server: remove this"
                yield Problem(key=f"{where}.{argument}", value=value, remedy=remedy)
    sizes = {f"{key}.tensor_parallel_size": model.tensor_parallel_size}
    sizes |= {f"{key}.groups.{name}.tensor_parallel_size": group.tensor_parallel_size for name, group in model.groups.items()}
    for where, size in sizes.items():
        if is_on_cpu and (size or 1) > 1:
            remedy = "deterministic=true has not been verified for tensor parallelism on a CPU: use 1"
            yield Problem(key=where, value=size, remedy=remedy)
