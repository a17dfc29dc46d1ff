"""Adapters: their targets exist in the model, and the adapter that a run begins with is one of this model."""

from vime.config import RunConfig
from vime.errors import Problem
from vime.model.adapter import KEY, start_problems
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


def start(config: RunConfig) -> list[Problem]:
    """The adapter that the run begins with has the run's shape; without a rank there is none."""
    lora = config.trainer.lora
    if lora.start is None:
        return []
    if not lora.rank:
        return [Problem(key=f"{KEY}.start", value=lora.start, remedy=f"a run with adapters needs {KEY}.rank, that of the folder")]
    return start_problems(lora, config.model)
