"""Adapters: their targets exist in the model, and the adapter that a run begins with is one of this model."""

from pathlib import Path

from vime.cluster.placement import DIRECT
from vime.config import LoraDelivery, Mode, RunConfig
from vime.errors import ConfigError, Problem
from vime.model.adapter_folder import KEY, RANKS, read_shape, start_problems
from vime.model.size import adapted_shapes


def targets(config: RunConfig) -> list[Problem]:
    """Adapters have targets, each once, and all of them are matrices that can be adapted."""
    lora, model = config.trainer.lora, config.model
    if not lora.rank:
        return []
    written = f"[{','.join(target.value for target in lora.targets)}]"
    possible = adapted_shapes(model, lora.targets)
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
            problems += _readable(key, model.adapter)
    return problems


def _readable(key: str, folder: str) -> list[Problem]:
    try:
        rank = read_shape(Path(folder), key=key).rank
    except ConfigError as error:
        return list(error.problems)
    remedy = f"has rank {rank}; vLLM has room for ranks up to {max(RANKS)}"
    return [Problem(key=key, value=folder, remedy=remedy)] if rank > max(RANKS) else []


def start(config: RunConfig) -> list[Problem]:
    """The adapter that the run begins with has the run's shape; without a rank there is none."""
    lora = config.trainer.lora
    if lora.start is None:
        return []
    if not lora.rank:
        return [Problem(key=f"{KEY}.start", value=lora.start, remedy=f"a run with adapters needs {KEY}.rank, that of the folder")]
    return start_problems(lora, config.model)
