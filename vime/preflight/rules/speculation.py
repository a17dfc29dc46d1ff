"""Speculative decoding: its settings fit together, and its draft can be loaded and brought up to date."""

from collections.abc import Iterator

from vime.cluster.placement import DIRECT, sends_adapters, transport
from vime.config import ModelAPI, RunConfig, ServedModelConfig, ServerRole, SpeculationMethod, SpeculativeConfig
from vime.errors import Problem

READ_BY = {
    "checkpoint": SpeculationMethod.draft_model,
    "num_layers": SpeculationMethod.early_exit,
    "prompt_lookup_min": SpeculationMethod.ngram,
    "prompt_lookup_max": SpeculationMethod.ngram,
}
"""The settings of one method alone."""
NEEDED = {
    SpeculationMethod.draft_model: ("checkpoint", "the folder or id of a smaller model with the same vocabulary"),
    SpeculationMethod.early_exit: ("num_layers", "the number of the model's layers that draft"),
}


def speculation(config: RunConfig) -> list[Problem]:
    """Every served model's `speculative` is complete, has an effect, and is possible where it is served."""
    found: list[Problem] = []
    for name, model in config.serving.models.items():
        found += _settings(f"serving.models.{name}.speculative", model.speculative)
        if model.speculative.method is not SpeculationMethod.none:
            found += _place(f"serving.models.{name}", model)
            if model.speculative.method is SpeculationMethod.early_exit:
                found += _early_exit(config, f"serving.models.{name}.speculative", model)
        elif any(_given(arguments) for arguments in _arguments(f"serving.models.{name}", model).values()):
            found += _sampling(f"serving.models.{name}", model)
    return found


def _settings(key: str, chosen: SpeculativeConfig) -> Iterator[Problem]:
    for field, method in READ_BY.items():
        value, default = getattr(chosen, field), getattr(SpeculativeConfig(), field)
        if chosen.method is not method and value != default:
            yield Problem(key=f"{key}.{field}", value=value, remedy=f"is read by {key}.method={method.value} alone: remove this")
    if (needed := NEEDED.get(chosen.method)) and getattr(chosen, needed[0]) is None:
        yield Problem(
            key=f"{key}.{needed[0]}", value=None, remedy=f"{key}.method={chosen.method.value} needs it: set {needed[1]}"
        )
    if chosen.prompt_lookup_max < chosen.prompt_lookup_min:
        remedy = f"must be at least {key}.prompt_lookup_min={chosen.prompt_lookup_min}"
        yield Problem(key=f"{key}.prompt_lookup_max", value=chosen.prompt_lookup_max, remedy=remedy)


def _place(key: str, model: ServedModelConfig) -> Iterator[Problem]:
    method = model.speculative.method.value
    if model.urls or model.api is ModelAPI.chat:
        remedy = "its servers are already running (urls), with or without speculation: use none"
        yield Problem(key=f"{key}.speculative.method", value=method, remedy=remedy)
    if any(group.role is not ServerRole.regular for group in model.groups.values()):
        remedy = "speculation has not been tried with prefill and decode apart: use none, or role=regular"
        yield Problem(key=f"{key}.speculative.method", value=method, remedy=remedy)
    for where, arguments in _arguments(key, model).items():
        if argument := _given(arguments):
            remedy = f"{key}.speculative.method={method} says it already: remove one of them"
            yield Problem(key=f"{where}.{argument}", value=arguments[argument], remedy=remedy)
    yield from _sampling(key, model)


def _sampling(key: str, model: ServedModelConfig) -> Iterator[Problem]:
    if not model.trained and model.sampling.min_p:
        remedy = "vLLM has no min_p with speculative decoding: remove this, or the speculation"
        yield Problem(key=f"{key}.sampling.min_p", value=model.sampling.min_p, remedy=remedy)


def _early_exit(config: RunConfig, key: str, model: ServedModelConfig) -> Iterator[Problem]:
    value, layers = model.speculative.method.value, model.speculative.num_layers
    if not model.trained:
        remedy = "the draft's weights come with syncs, which only the trained model gets: use ngram or draft_model"
        yield Problem(key=f"{key}.method", value=value, remedy=remedy)
        return
    if layers is not None and layers >= config.model.num_layers:
        remedy = f"must be below model.num_layers={config.model.num_layers}: the whole model drafts no faster than it answers"
        yield Problem(key=f"{key}.num_layers", value=layers, remedy=remedy)
    if config.model.num_experts:
        remedy = "the first layers of a mixture of experts have not been tried as a draft: use ngram or draft_model"
        yield Problem(key=f"{key}.method", value=value, remedy=remedy)
    if sends_adapters(config):
        remedy = "the draft takes whole weights, and serving.lora=adapter sends adapters: use serving.lora=merge, or ngram"
        yield Problem(key=f"{key}.method", value=value, remedy=remedy)
    elif (way := transport(config)) in DIRECT:
        remedy = (
            f"weights for model and draft come in files, and not by {way.value}: set cluster.weight_transfer=disk, or use ngram"
        )
        yield Problem(key=f"{key}.method", value=value, remedy=remedy)


def _arguments(key: str, model: ServedModelConfig) -> dict[str, dict[str, object]]:
    """vLLM's arguments of a model and of its groups, by their keys."""
    return {f"{key}.vllm_args": model.vllm_args} | {
        f"{key}.groups.{name}.vllm_args": group.vllm_args for name, group in model.groups.items()
    }


def _given(arguments: dict[str, object]) -> str | None:
    """The argument that asks for speculation, as it is written."""
    return next((name for name, value in arguments.items() if name.replace("-", "_") == "speculative_config" and value), None)
