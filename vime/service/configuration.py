"""The configuration of a service, from the words of its command line, and the rules that it must keep."""

from vime.cluster.placement import takes_turns
from vime.config import ClusterConfig, LoraDelivery, Mode, RunConfig
from vime.errors import Problem
from vime.preflight.compose import Composed, compose_run
from vime.preflight.rules import (
    cuda,
    gpu_memory,
    linear_attention,
    lora,
    machine_requirements,
    model_shape,
    numbers,
    parallel_sizes,
    routing_replay,
    security,
    serving,
    vllm_arguments,
)
from vime.preflight.validation import Rule, found_by

RULES: tuple[Rule, ...] = (
    numbers.ranges,
    machine_requirements.run_folder_can_be_made,
    model_shape.heads,
    model_shape.rotary_embeddings,
    linear_attention.linear_attention,
    lora.targets,
    lora.delivery,
    parallel_sizes.trainer_shards,
    parallel_sizes.token_shards,
    parallel_sizes.expert_shards,
    routing_replay.in_service,
    serving.elastic_in_service,
    parallel_sizes.pipeline,
    parallel_sizes.trainer_gpus,
    parallel_sizes.server_gpus,
    parallel_sizes.cluster_gpus,
    parallel_sizes.nodes,
    parallel_sizes.megatron_fields,
    gpu_memory.trainer_fits,
    cuda.layouts,
    serving.one_trained,
    serving.router,
    serving.ports,
    serving.groups,
    serving.context,
    serving.rotary_embeddings,
    vllm_arguments.arguments,
    security.arguments,
)
"""The rules of a run that are about models, trainer and servers."""
MACHINE_RULES: tuple[Rule, ...] = (
    machine_requirements.gpus,
    machine_requirements.checkpoint,
    machine_requirements.ports_free,
    machine_requirements.shared_memory,
    machine_requirements.host_memory,
    machine_requirements.address,
    machine_requirements.ray_answers,
)
"""Rules about this machine, which a plan leaves out."""
DEFAULTS = ("name=service_${model.name}", "trainer.lora.rank=32")
ADAPTERS = ("serving.lora=adapter",)
"""Words that come before those of the command line, in general and where adapters are trained."""


def compose_service(words: list[str]) -> Composed:
    """Composes a service. Raises `ConfigError` with all of its problems."""
    found = compose_run([*DEFAULTS, *words]).config
    defaults = [*DEFAULTS, *(ADAPTERS if found.trainer.lora.rank else ())]
    return compose_run([*defaults, *apart(found.cluster), *words], check=find_problems)


def apart(cluster: ClusterConfig) -> list[str]:
    """Words for a cluster whose trainer and servers would take turns: each gets half of the GPUs."""
    if not cluster.colocated or not cluster.gpus_per_node:
        return []
    number = cluster.gpus_per_node * cluster.num_nodes
    numbers = {"num_trainer_gpus": number - number // 2, "num_server_gpus": number // 2}
    return ["cluster.colocated=false", *(f"cluster.{name}={value}" for name, value in numbers.items())]


def find_problems(config: RunConfig) -> list[Problem]:
    """All problems of a service's configuration."""
    return found_by((*RULES, own_rules) if config.mode is Mode.plan else (*RULES, *MACHINE_RULES, own_rules), config)


def own_rules(config: RunConfig) -> list[Problem]:
    """Adapters go to the servers by themselves, and the servers answer while the service trains."""
    problems = []
    if config.trainer.lora.rank and config.serving.lora is not LoraDelivery.adapter:
        remedy = "a service has several models on one base: use adapter"
        problems.append(Problem(key="serving.lora", value=config.serving.lora.value, remedy=remedy))
    if takes_turns(config):
        remedy = "clients sample while others train, so servers need GPUs of their own: use false"
        problems.append(Problem(key="cluster.colocated", value=True, remedy=remedy))
    if config.cluster.num_delta_syncs:
        remedy = "a sampler's weights are sent whole, whichever were sent before: use 0"
        problems.append(Problem(key="cluster.num_delta_syncs", value=config.cluster.num_delta_syncs, remedy=remedy))
    if config.resume:
        remedy = "a service goes on with the checkpoints in its folder: give output_dir=FOLDER again"
        problems.append(Problem(key="resume", value=True, remedy=remedy))
    return problems
