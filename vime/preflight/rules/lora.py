"""Adapters: their targets exist in the model, and the adapter that a run begins with is one of this model."""

from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from vime.cluster.placement import DIRECT, takes_turns
from vime.config import AlgorithmName, LoraDelivery, LoraTarget, Mode, RunConfig, ServedModelConfig
from vime.errors import ConfigError, Problem
from vime.model.adapter_folder import KEY, RANKS, read_shape, start_problems
from vime.model.families import family_of
from vime.model.size import adapted_shapes, vocabulary_shapes

SHARED = (
    "precision",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "virtual_pipeline_parallel_size",
    "data_parallel_size",
    "context_parallel_size",
    "expert_parallel_size",
    "routing_replay",
    "recompute",
    "num_threads",
    "overlap_gradient_reduction",
)
"""Settings of the trainer that are those of the model, which several adapters share."""
OWN = ".max_model_len"
"""The setting of a served model that is the agent's, and may differ between adapters."""


def targets(config: RunConfig) -> list[Problem]:
    """Adapters have targets, each once, and all of them are matrices that can be adapted."""
    lora, model = config.trainer.lora, config.model
    if not lora.rank:
        return []
    written = f"[{','.join(target.value for target in lora.targets)}]"
    possible = adapted_shapes(model, lora.targets) | vocabulary_shapes(model, lora.targets)
    if len(possible) == len(lora.targets) and lora.targets:
        return []
    remedy = "name each matrix once, and at least one"
    if missing := [target.value for target in lora.targets if target not in possible]:
        attention = ",".join(target.value for target in possible)
        remedy = f"{', '.join(missing)} are in experts, which get no adapters: use [{attention}]"
    return [Problem(key=f"{KEY}.targets", value=written, remedy=remedy)]


def delivery(config: RunConfig) -> list[Problem]:
    """Adapters are sent by themselves only where there are some, to servers of this run, in files, and not repeatably."""
    if config.serving.lora is LoraDelivery.merge:
        return []
    key, value = "serving.lora", config.serving.lora.value
    problems = []
    if not config.trainer.lora.rank:
        problems.append(Problem(key=key, value=value, remedy=f"all weights are trained: use merge, or set {KEY}.rank"))
    if config.deterministic:
        remedy = "a server's products with adapters depend on the batch, so deterministic=true needs merge"
        problems.append(Problem(key=key, value=value, remedy=remedy))
    if any(model.trained and model.urls for model in config.serving.models.values()):
        problems.append(Problem(key=key, value=value, remedy="servers given by urls take whole weights: use merge"))
    if (way := config.cluster.weight_transfer) in DIRECT:
        remedy = f"cluster.weight_transfer={way.value} sends whole weights: use auto, shm or disk, or serving.lora=merge"
        problems.append(Problem(key=key, value=value, remedy=remedy))
    if remedy := _unserved(config, config.trainer.lora.targets):
        problems.append(Problem(key=key, value=value, remedy=f"{remedy}: use merge, or leave them out"))
    if config.trainer.lora.rank > max(RANKS):
        problems.append(Problem(key=key, value=value, remedy=f"vLLM has room for ranks up to {max(RANKS)}: use merge"))
    return problems


def served(config: RunConfig) -> list[Problem]:
    """Adapters of served models are of models that this run starts and does not train, and their folders can be read."""
    problems = []
    for name, model in config.serving.models.items():
        if model.adapter is None:
            continue
        key = f"serving.models.{name}.adapter"
        if model.trained and config.mode is not Mode.eval:
            remedy = f"the trained model begins with an adapter by {KEY}.rank and {KEY}.start"
            problems.append(Problem(key=key, value=model.adapter, remedy=remedy))
        elif model.urls:
            remedy = "servers given by urls have their own models: start them with the adapter, and leave this out"
            problems.append(Problem(key=key, value=model.adapter, remedy=remedy))
        else:
            problems += _readable(config, key, model)
    return problems


def _unserved(config: RunConfig, adapted: Iterable[LoraTarget]) -> str:
    """The reason why vLLM does not take an adapter of these matrices of the run's model; empty if it does."""
    family, named = config.model.family, ", ".join(target.value for target in vocabulary_shapes(config.model, adapted))
    served = not named or family_of(family).serves_vocabulary
    return "" if served else f"vLLM takes no adapter of {named} for the family {family.value}"


def together(config: RunConfig) -> list[Problem]:
    """Several adapters share model, trainer, servers and machines, and differ in all else; servers get each by itself."""
    if not config.adapters:
        return []
    names, problems = ", ".join(config.adapters), list[Problem]()
    if config.mode not in (Mode.train, Mode.plan) or config.rehearse:
        remedy = "several adapters are trained, and nothing else: leave them out, and give the words of one of them"
        remedy += "" if config.rehearse else ", with its folder as serving.models.actor.adapter"
        problems.append(Problem(key="adapters", value=names, remedy=remedy))
    if takes_turns(config):
        remedy = (
            "one adapter generates while another is trained, so they need servers with GPUs of their own: cluster.colocated=false"
        )
        problems.append(Problem(key="adapters", value=names, remedy=remedy))
    (first_name, first), *_ = config.adapters.items()
    served: dict[str, tuple[str, ServedModelConfig]] = {}
    for name, own in config.adapters.items():
        key = f"adapters.{name}"
        if not own.trainer.lora.rank:
            problems.append(Problem(key=f"{key}: {KEY}.rank", value=0, remedy="an adapter has a rank of at least 1"))
        if own.serving.lora is LoraDelivery.merge:
            remedy = "merged weights are those of one adapter: set serving.lora=adapter"
            problems.append(Problem(key=f"{key}: serving.lora", value=own.serving.lora.value, remedy=remedy))
        if own.algorithm.name is AlgorithmName.sft:
            remedy = "demonstrations are learned in a run of one adapter: choose another algorithm, or leave the others out"
            problems.append(Problem(key=f"{key}: algorithm", value="sft", remedy=remedy))
        for field, (theirs, ours) in _differences(first, own).items():
            remedy = f"it is {theirs} for {first_name}, and all adapters share it: give it for the whole run"
            problems.append(Problem(key=f"{key}: {field}", value=ours, remedy=remedy))
        for model_name, model in own.serving.models.items():
            owner, theirs = served.setdefault(model_name, (name, model))
            for field, (other, ours) in _fields(f"serving.models.{model_name}", theirs, model).items():
                if not field.endswith(OWN):
                    remedy = f"it is {other} for {owner}, and all adapters share its servers: give it for the whole run"
                    problems.append(Problem(key=f"{key}: {field}", value=ours, remedy=remedy))
    return problems


def _differences(one: RunConfig, other: RunConfig) -> dict[str, tuple[Any, Any]]:
    """The settings of model, machines and trainer, which adapters share, where two configurations differ."""
    pairs = {name: (getattr(one, name), getattr(other, name)) for name in ("model", "cluster", "deterministic")}
    pairs |= {f"trainer.{name}": (getattr(one.trainer, name), getattr(other.trainer, name)) for name in SHARED}
    found: dict[str, tuple[Any, Any]] = {}
    for name, (ours, theirs) in pairs.items():
        found |= _fields(name, ours, theirs)
    return found


def _fields(name: str, one: Any, other: Any) -> dict[str, tuple[Any, Any]]:
    """A setting where two configurations differ, or those of its fields that do."""
    if not is_dataclass(one):
        return {} if one == other else {name: (one, other)}
    pairs = {f"{name}.{field.name}": (getattr(one, field.name), getattr(other, field.name)) for field in fields(one)}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def _readable(config: RunConfig, key: str, model: ServedModelConfig) -> list[Problem]:
    folder = str(model.adapter)
    try:
        shape = read_shape(Path(folder), key=key)
    except ConfigError as error:
        return list(error.problems)
    remedies = [f"has rank {shape.rank}; vLLM has room for ranks up to {max(RANKS)}"] if shape.rank > max(RANKS) else []
    if model.checkpoint in (None, config.model.checkpoint) and (remedy := _unserved(config, shape.shapes)):
        remedies.append(f"{remedy}: merge it into its model, and serve that")
    return [Problem(key=key, value=folder, remedy=remedy) for remedy in remedies]


def start(config: RunConfig) -> list[Problem]:
    """The adapter that the run begins with has the run's shape; without a rank there is none."""
    lora = config.trainer.lora
    if lora.start is None:
        return []
    if not lora.rank:
        return [Problem(key=f"{KEY}.start", value=lora.start, remedy=f"a run with adapters needs {KEY}.rank, that of the folder")]
    return start_problems(lora, config.model)
