"""Low precision in servers: vLLM's arguments for quantized weights and for the KV cache, and the servers that compute in it."""

from dataclasses import replace
from typing import Any

from vime.config import KVCacheDtype, Mode, Precision, Quantization, RunConfig, ServedModelConfig, TrainedQuantization
from vime.weights.quantize import INT8

ARGUMENTS = ("quantization", "quantization_config", "kv_cache_dtype")
"""Arguments of vLLM that change the number format of weights or KV cache."""


def gets_integers(config: RunConfig, model: ServedModelConfig) -> bool:
    """True if the trainer quantizes the weights of a model for its servers; without a trainer they have the checkpoint's."""
    return model.trained and model.quantization is Quantization.int8 and config.mode is not Mode.eval


def quantization_arguments(model: ServedModelConfig) -> dict[str, Any]:
    """The arguments of a server that quantizes weights itself, or keeps its KV cache in another format."""
    arguments: dict[str, Any] = {}
    if model.quantization not in (Quantization.none, Quantization.int8):
        arguments["quantization"] = model.quantization.value
    if model.kv_cache_dtype is not KVCacheDtype.auto:
        arguments["kv_cache_dtype"] = model.kv_cache_dtype.value
    return arguments


def quantization_overrides(config: RunConfig, model: ServedModelConfig) -> dict[str, Any]:
    """The fields of `config.json` that describe the weights which the trainer quantizes."""
    return {"quantization_config": INT8} if gets_integers(config, model) else {}


def is_low_precision(model: ServedModelConfig) -> bool:
    """True if a model's servers compute with fewer bits than the run's precision, by a setting or by an argument of vLLM."""
    arguments = [model.vllm_args, *(group.vllm_args for group in model.groups.values())]
    given = {name.replace("-", "_") for found in arguments for name, value in found.items() if value not in (None, "auto")}
    return (
        model.quantization is not Quantization.none or model.kv_cache_dtype is not KVCacheDtype.auto or bool(given & {*ARGUMENTS})
    )


def is_approximate(config: RunConfig, model: ServedModelConfig) -> bool:
    """True if a model's servers compute in low precision, and the trainer not with the same integers.

    In bfloat16 inputs are rounded twice, and those of trainer and servers are often not the same integers.
    """
    trainer, both = config.trainer, model.quantization is Quantization.int8
    if both and trainer.quantization is TrainedQuantization.int8 and trainer.precision is Precision.float32:
        return is_low_precision(replace(model, quantization=Quantization.none))
    return is_low_precision(model)
