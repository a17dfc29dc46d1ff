"""Earlier versions of the trained model as another model's weights: its servers are of this run, and can take them."""

from collections.abc import Iterator

from vime.cluster.placement import sends_adapters, sends_integers
from vime.config import AlgorithmName, ModelAPI, Quantization, RunConfig, ServedModelConfig
from vime.errors import Problem


def past_versions(config: RunConfig) -> list[Problem]:
    """Every served model with `past_versions.every` can be brought the trained model's weights."""
    if config.algorithm.name is AlgorithmName.sft:
        return []
    following = {name: model for name, model in config.serving.models.items() if model.past_versions.every}
    return [
        problem
        for name, model in following.items()
        for problem in (
            *_own(f"serving.models.{name}", model),
            *_together(config, f"serving.models.{name}.past_versions.every", model),
        )
    ]


def _own(key: str, model: ServedModelConfig) -> Iterator[Problem]:
    why = "its weights are earlier versions of the trained model (past_versions.every)"
    if model.trained:
        remedy = "the trained model has its present weights: use 0 here, and give it to another served model"
        yield Problem(key=f"{key}.past_versions.every", value=model.past_versions.every, remedy=remedy)
    if model.urls or model.api is ModelAPI.chat:
        yield Problem(key=f"{key}.urls", value=model.urls, remedy=f"{why}: leave its servers to this run, and remove this")
    for name in ("checkpoint", "adapter"):
        if not model.trained and (value := getattr(model, name)) is not None:
            yield Problem(key=f"{key}.{name}", value=value, remedy=f"{why}: set this to null")
    if model.quantization is not Quantization.none:
        remedy = f"{why}, which are served in the run's precision: use none"
        yield Problem(key=f"{key}.quantization", value=model.quantization.value, remedy=remedy)


def _together(config: RunConfig, key: str, model: ServedModelConfig) -> Iterator[Problem]:
    every = model.past_versions.every
    if config.adapters:
        remedy = "runs of several adapters have no earlier versions to serve: use 0, or train one adapter"
        yield Problem(key=key, value=every, remedy=remedy)
    elif sends_adapters(config):
        remedy = "needs whole weights, and serving.lora=adapter sends adapters alone: set serving.lora=merge"
        yield Problem(key=key, value=every, remedy=remedy)
    if sends_integers(config):
        remedy = "the trainer sends 8-bit integers, which servers of other models cannot load: use another quantization, or 0"
        yield Problem(key=key, value=every, remedy=remedy)
