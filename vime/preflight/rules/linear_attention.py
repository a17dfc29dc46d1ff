"""Layers of linear attention: their shape, and settings that they do not go with."""

from collections.abc import Iterator
from dataclasses import asdict

from vime.cluster.placement import server_groups
from vime.config import KVCacheDtype, ModelAPI, Quantization, RunConfig, ServedModelConfig, ServerRole, SpeculationMethod
from vime.errors import Problem
from vime.model.families import family_of
from vime.preflight.rules.numbers import must_divide

KEY = "model.linear_attention"


def linear_attention(config: RunConfig) -> list[Problem]:
    """A family with linear attention has its sizes, tensor-parallel sizes divide them, and nothing untried is set."""
    linear, family = config.model.linear_attention, config.model.family
    if not family_of(family).has_linear_attention:
        given = {name: value for name, value in asdict(linear).items() if value}
        remedy = f"the family {family.value} has no linear attention: use 0"
        return [Problem(key=f"{KEY}.{name}", value=value, remedy=remedy) for name, value in given.items()]
    if missing := [name for name, value in asdict(linear).items() if not value]:
        remedy = f"the family {family.value} needs this number: that of the checkpoint's config.json"
        return [Problem(key=f"{KEY}.{name}", value=0, remedy=remedy) for name in missing]
    problems = [*_shards(config), *_training(config)]
    for name, served in config.serving.models.items():
        is_own = served.trained or served.checkpoint in (None, config.model.checkpoint)
        if is_own and not served.urls and served.api is not ModelAPI.chat:
            problems += _serving(config, f"serving.models.{name}", served)
    return problems


def _shards(config: RunConfig) -> Iterator[Problem]:
    linear = config.model.linear_attention
    parts = {f"{KEY}.{name}": getattr(linear, name) for name in ("num_key_heads", "num_value_heads")}
    sizes = {"trainer.tensor_parallel_size": config.trainer.tensor_parallel_size}
    for name, served in config.serving.models.items():
        if served.trained:
            size = max(group.settings.tensor_parallel_size for group in server_groups(name, served))
            sizes[f"serving.models.{name}.tensor_parallel_size"] = size
    for key, size in sizes.items():
        if size > 0 and (remedy := must_divide(size, parts)):
            yield Problem(key=key, value=size, remedy=remedy)
    heads = {f"{KEY}.num_value_heads": linear.num_value_heads}
    if remedy := must_divide(linear.num_key_heads, heads):
        yield Problem(key=f"{KEY}.num_key_heads", value=linear.num_key_heads, remedy=remedy)


def _training(config: RunConfig) -> Iterator[Problem]:
    trainer = config.trainer
    if trainer.context_parallel_size > 1:
        remedy = (
            "linear attention passes a state over whole sequences, so no rank can begin with a later part of one before the "
            "rank before it is done: use 1, and trainer.tensor_parallel_size for long sequences"
        )
        yield Problem(key="trainer.context_parallel_size", value=trainer.context_parallel_size, remedy=remedy)
    for name, value in {"quantization": trainer.quantization.value, "fp8.recipe": trainer.fp8.recipe.value}.items():
        if value != "none":
            remedy = "low precision has not been tried with linear attention: use none"
            yield Problem(key=f"trainer.{name}", value=value, remedy=remedy)
    if trainer.lora.rank:
        remedy = "adapters of layers of linear attention have not been tried, and vLLM has none on a CPU: use 0, all weights"
        yield Problem(key="trainer.lora.rank", value=trainer.lora.rank, remedy=remedy)


def _serving(config: RunConfig, key: str, served: ServedModelConfig) -> Iterator[Problem]:
    untried: dict[str, tuple[object, object]] = {
        "quantization": (served.quantization.value, Quantization.none.value),
        "kv_cache_dtype": (served.kv_cache_dtype.value, KVCacheDtype.auto.value),
        "adapter": (served.adapter, None),
    }
    if not config.cluster.gpus_per_node:  # on GPUs vLLM has kernels for drafted tokens
        untried["speculative.method"] = (served.speculative.method.value, SpeculationMethod.none.value)
    for name, (value, usual) in untried.items():
        if value != usual:
            remedy = f"it has not been tried with linear attention: use {'null' if usual is None else usual}"
            yield Problem(key=f"{key}.{name}", value=value, remedy=remedy)
    if any(group.role is not ServerRole.regular for group in served.groups.values()):
        remedy = "states of linear attention have not been sent from prefill to decode servers: use role=regular"
        yield Problem(key=f"{key}.groups", value=", ".join(served.groups), remedy=remedy)
    if config.deterministic and not config.cluster.gpus_per_node:
        remedy = "with deterministic=true on a CPU, results of linear attention would depend on the batch of a server: use false"
        yield Problem(key="deterministic", value=True, remedy=remedy)
