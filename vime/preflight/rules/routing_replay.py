"""Routing replay: a model with experts, servers that report them, and passes in which there is something to replay."""

from collections.abc import Iterator

from vime.algorithm.algorithm import Weights
from vime.algorithm.choice import algorithm_of
from vime.config import RoutingReplay, RunConfig, ServedModelConfig, ServerRole, SpeculationMethod
from vime.errors import ConfigError, Problem

KEY = "trainer.routing_replay"
REFUSED_WITH = {"enable_prefix_caching": False, "enable_return_routed_experts": False}
"""Arguments of vLLM with a value for which it does not report experts."""
PARTED = ("pipeline_parallel_size", "decode_context_parallel_size", "prefill_context_parallel_size")
"""Arguments of vLLM with which it does not report experts if they are more than 1."""


def replay(config: RunConfig) -> list[Problem]:
    """The replayed experts exist, servers or trainer can say which they are, and every recomputed router gets them again."""
    kind = config.trainer.routing_replay
    if kind is RoutingReplay.none:
        return []
    if not config.model.num_experts:
        remedy = "the model has no experts (model.num_experts=0): use none"
        return [Problem(key=KEY, value=kind.value, remedy=remedy)]
    found = [*_recomputed(config)]
    found += _of_trainer(config) if kind is RoutingReplay.trainer else _of_rollout(config)
    return found


def in_service(config: RunConfig) -> list[Problem]:
    """Clients of a service send tokens without their experts."""
    if (kind := config.trainer.routing_replay) is RoutingReplay.none:
        return []
    return [Problem(key=KEY, value=kind.value, remedy="clients of a service send no experts with their tokens: use none")]


def _recomputed(config: RunConfig) -> Iterator[Problem]:
    modules = config.trainer.megatron_args.get("recompute_modules") or ()
    if "moe" in modules:
        remedy = "a router that is recomputed without its layer would get the experts of another row: leave out moe, or use "
        remedy += "trainer.recompute=true"
        yield Problem(key="trainer.megatron_args.recompute_modules", value=modules, remedy=remedy)


def _of_trainer(config: RunConfig) -> Iterator[Problem]:
    try:
        algorithm = algorithm_of(config)
    except ConfigError:  # another rule says so
        return
    trainer, needs = config.trainer, algorithm.needs_of_loss(is_present=False)
    if not any(need.weights is Weights.present for need in needs):
        remedy = "it replays the pass for the old logprobs, and there is none in which the loss alone reads them: set "
        remedy += "algorithm.old_logprobs=trainer, with algorithm.kl_place=loss, or use rollout or none"
        yield Problem(key=KEY, value=RoutingReplay.trainer.value, remedy=remedy)
    elif trainer.num_updates_per_batch * trainer.num_epochs_per_batch == 1:
        remedy = "with one update per batch its weights are those of the old logprobs, and so are its experts: set "
        remedy += "trainer.num_updates_per_batch, or use rollout or none"
        yield Problem(key=KEY, value=RoutingReplay.trainer.value, remedy=remedy)


def _of_rollout(config: RunConfig) -> Iterator[Problem]:
    value, on_gpus = RoutingReplay.rollout.value, config.cluster.gpus_per_node > 0
    served = {name: model for name, model in config.serving.models.items() if model.trained}
    if _is_supervised(config) or not served:
        yield Problem(key=KEY, value=value, remedy="no server samples what is trained: use none")
        return
    if config.deterministic and on_gpus:
        remedy = "vLLM reports experts only with its prefix cache, which deterministic=true turns off on GPUs: use trainer"
        yield Problem(key=KEY, value=value, remedy=remedy)
    for name, model in served.items():
        key = f"serving.models.{name}"
        if model.urls:
            remedy = f"with {KEY}=rollout the run must start the servers itself, so that they report experts: remove it, or use "
            remedy += f"{KEY}=trainer or none"
            yield Problem(key=f"{key}.urls", value=model.urls, remedy=remedy)
        for group, own in model.groups.items():
            if own.role is not ServerRole.regular:
                remedy = f"servers that read prompts for others do not report experts ({KEY}=rollout): use regular"
                yield Problem(key=f"{key}.groups.{group}.role", value=own.role.value, remedy=remedy)
        if (method := model.speculative.method) is not SpeculationMethod.none and not on_gpus:
            remedy = f"vLLM does not report experts on a CPU with drafted tokens ({KEY}=rollout): use none"
            yield Problem(key=f"{key}.speculative.method", value=method.value, remedy=remedy)
        yield from _arguments(key, model, on_gpus=on_gpus)


def _is_supervised(config: RunConfig) -> bool:
    try:
        return algorithm_of(config).is_supervised
    except ConfigError:  # another rule says so
        return False


def _arguments(key: str, model: ServedModelConfig, *, on_gpus: bool) -> Iterator[Problem]:
    given = {f"{key}.vllm_args": model.vllm_args}
    given |= {f"{key}.groups.{name}.vllm_args": group.vllm_args for name, group in model.groups.items()}
    for where, arguments in given.items():
        for argument, value in arguments.items():
            name = argument.replace("-", "_")
            is_refused = name in REFUSED_WITH and value == REFUSED_WITH[name]
            is_parted = name in PARTED and value != 1
            if is_refused or is_parted or (name == "speculative_config" and value and not on_gpus):
                machine = "" if on_gpus or name != "speculative_config" else " on a CPU"
                remedy = f"vLLM does not report experts{machine} with it ({KEY}=rollout): remove it"
                yield Problem(key=f"{where}.{argument}", value=value, remedy=remedy)
