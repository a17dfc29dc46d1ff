"""Low precision: formats exist where they are served and trained, and what a quantized model samples is corrected in training,
unless the trainer computes with the same integers.
"""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from vime.cluster.placement import DIRECT, sends_adapters, transport
from vime.config import (
    PROBABILITY_MASKS,
    AlgorithmName,
    CorrectionMode,
    CriticPlace,
    Fp8Recipe,
    KVCacheDtype,
    ModelAPI,
    OldLogprobs,
    Precision,
    Quantization,
    RunConfig,
    ServedModelConfig,
    SpeculationMethod,
    Surrogate,
    TrainedQuantization,
)
from vime.errors import Problem
from vime.model.families import family_of
from vime.serving.quantization import ARGUMENTS, is_approximate
from vime.weights.quantize import GROUP

PROCESSOR = Path("/proc/cpuinfo")
WITH_8_BIT_CACHE = {"avx512f", "amx_tile"}
"""Processor capabilities, by Linux's names; either is enough."""
ON_GPUS = (Quantization.fp8_per_tensor, Quantization.fp8_per_block)


def formats(config: RunConfig) -> list[Problem]:
    """Every served model's number formats are possible on this cluster, and each is asked for once."""
    found: list[Problem] = []
    for name, model in config.serving.models.items():
        if model.quantization is not Quantization.none:
            found += _quantization(config, f"serving.models.{name}.quantization", model)
        if model.quantization is not Quantization.none or model.kv_cache_dtype is not KVCacheDtype.auto:
            found += _together(config, f"serving.models.{name}", model)
    return found


def processor(config: RunConfig) -> list[Problem]:
    """This machine's processor can keep 8-bit keys and values, where servers on it are to do so."""
    if config.cluster.gpus_per_node or not PROCESSOR.is_file() or WITH_8_BIT_CACHE & set(PROCESSOR.read_text().split()):
        return []
    remedy = "vLLM 0.32.0 needs a processor with AVX-512 or AMX for that, which this one has not: use auto"
    return [
        Problem(key=f"serving.models.{name}.kv_cache_dtype", value=model.kv_cache_dtype.value, remedy=remedy)
        for name, model in config.serving.models.items()
        if model.kv_cache_dtype is not KVCacheDtype.auto and not model.urls
    ]


def training(config: RunConfig) -> list[Problem]:
    """Quantization-aware training is possible for the model, and its servers compute with what the trainer computes with."""
    chosen = config.trainer.quantization
    return [] if chosen is TrainedQuantization.none else [*_trainable(config, chosen), *_served_alike(config, chosen)]


def floats(config: RunConfig) -> list[Problem]:
    """Training in 8-bit floats is possible for the model and on the cluster."""
    fp8, model, key = config.trainer.fp8, config.model, "trainer.fp8.recipe"
    value, left = fp8.recipe.value, fp8.num_first_bf16_layers + fp8.num_last_bf16_layers
    found: list[tuple[bool, str]] = [
        (config.cluster.gpus_per_node == 0, "8-bit floats need GPUs with Transformer Engine: use none, or a cluster with GPUs"),
        (config.trainer.precision is not Precision.bfloat16, "what stays is in bfloat16: set trainer.precision=bfloat16"),
        (config.trainer.lora.rank > 0, "adapters in 8-bit floats are not built: set trainer.lora.rank=0"),
        (config.trainer.quantization is not TrainedQuantization.none, "choose one format: set trainer.quantization=none"),
        (config.algorithm.critic.place is not CriticPlace.none, "critics in 8-bit floats are not built: use none"),
        (model.num_experts > 0, "experts in 8-bit floats are not built: use none"),
        (family_of(model.family).post_norms, f"8-bit floats are not built for {model.family.value}: use none"),
        (fp8.recipe is Fp8Recipe.delayed and left > 0, "no layer may stay in bfloat16 with delayed scaling: use tensorwise"),
        (left >= model.num_layers, f"all {model.num_layers} layers stay in bfloat16: leave fewer out, or use none"),
    ]
    if fp8.recipe is Fp8Recipe.none:
        found = [(left > 0, "layers are left out of 8-bit floats, and there are none: choose a recipe, or set 0")]
    return [Problem(key=key, value=value, remedy=remedy) for is_wrong, remedy in found if is_wrong]


def engine(config: RunConfig) -> list[Problem]:
    """Transformer Engine is installed where the trainer needs it."""
    recipe = config.trainer.fp8.recipe
    if recipe is Fp8Recipe.none or config.cluster.ray_address is not None or find_spec("transformer_engine") is not None:
        return []
    remedy = "Transformer Engine is not installed: pip install 'transformer-engine[pytorch]', or use none"
    return [Problem(key="trainer.fp8.recipe", value=recipe.value, remedy=remedy)]


def _trainable(config: RunConfig, chosen: TrainedQuantization) -> Iterator[Problem]:
    key, model, trainer = "trainer.quantization", config.model, config.trainer
    if trainer.lora.rank:
        remedy = "merged adapters would be quantized with their matrix in servers, and apart from it in the trainer: set "
        yield Problem(key=key, value=chosen.value, remedy=f"{remedy}trainer.lora.rank=0, or use none")
    if chosen is TrainedQuantization.int8 and model.num_experts:
        remedy = "no server has quantized the inputs of experts yet: use int4, which leaves inputs as they are, or none"
        yield Problem(key=key, value=chosen.value, remedy=remedy)
    if chosen is TrainedQuantization.int8 and config.cluster.gpus_per_node and config.algorithm.name is not AlgorithmName.sft:
        remedy = "servers on GPUs do not get the trainer's integers: use int4, whose weights they get, or none"
        yield Problem(key=key, value=chosen.value, remedy=remedy)
    if chosen is not TrainedQuantization.int4:
        return
    ranks = trainer.tensor_parallel_size
    widths = {
        "hidden_size": model.hidden_size,
        "num_attention_heads · head_dim": model.num_attention_heads * model.head_dim / ranks,
    }
    if model.num_experts:
        widths["moe_intermediate_size"] = model.moe_intermediate_size
    else:
        widths["intermediate_size"] = model.intermediate_size / ranks
    for name, width in widths.items():
        if width % GROUP:
            part = f" on each of {ranks} tensor-parallel ranks" if ranks > 1 and name != "hidden_size" else ""
            remedy = f"{GROUP} inputs share a scale, which do not divide the {width:g} of model.{name}{part}: use int8, or none"
            yield Problem(key=key, value=chosen.value, remedy=remedy)


def _served_alike(config: RunConfig, chosen: TrainedQuantization) -> Iterator[Problem]:
    """Servers of the trained model have the trainer's integers, or in 4 bits the weights that these represent."""
    if config.algorithm.name is AlgorithmName.sft:
        return
    wanted = Quantization.int8 if chosen is TrainedQuantization.int8 else Quantization.none
    for name, model in config.serving.models.items():
        if model.trained and model.quantization is not wanted:
            remedy = (
                f"with trainer.quantization={chosen.value} its servers compute with other numbers than the trainer: use "
                f"{wanted.value}, or trainer.quantization=none"
            )
            yield Problem(key=f"serving.models.{name}.quantization", value=model.quantization.value, remedy=remedy)


def correction(config: RunConfig) -> list[Problem]:
    """A trained model that is sampled in low precision has a correction for the distance between sampler and trainer."""
    algorithm = config.algorithm
    if algorithm.name is AlgorithmName.sft or algorithm.object is not None or algorithm.loss is not None:
        return []
    by_ratio = algorithm.surrogate in (*PROBABILITY_MASKS, Surrogate.cispo) and algorithm.old_logprobs is OldLogprobs.engine
    corrects = algorithm.score_centering or algorithm.correction.mode is not CorrectionMode.none or by_ratio
    if corrects or algorithm.correction.allow_none:
        return []
    remedy = (
        "servers in low precision sample from another distribution than the trainer's, and nothing corrects for that: choose "
        "algorithm=score_centering, or algorithm.correction.mode=truncate algorithm.old_logprobs=trainer (truncated importance "
        "weights), train with the same integers (trainer.quantization=int8 trainer.precision=float32, for servers in int8), or "
        "set algorithm.correction.allow_none=true to train without"
    )
    return [
        Problem(key="algorithm.correction.mode", value=algorithm.correction.mode.value, remedy=remedy)
        for model in config.serving.models.values()
        if model.trained and is_approximate(config, model)
    ]


def _quantization(config: RunConfig, key: str, model: ServedModelConfig) -> Iterator[Problem]:
    chosen, on_gpus = model.quantization, config.cluster.gpus_per_node > 0
    if chosen in ON_GPUS and not on_gpus:
        remedy = "vLLM 0.32.0 has no such products on a CPU without AMX: use fp8_per_channel or int8, or a cluster with GPUs"
        yield Problem(key=key, value=chosen.value, remedy=remedy)
    if not on_gpus and config.model.num_experts and model.checkpoint in (None, config.model.checkpoint):
        remedy = "quantized experts have not been tried on a CPU: use none"
        yield Problem(key=key, value=chosen.value, remedy=remedy)
    if chosen is not Quantization.int8:
        return
    if on_gpus:
        remedy = "the trainer quantizes to integers for servers on a CPU alone: use fp8_per_channel"
        yield Problem(key=key, value=chosen.value, remedy=remedy)
    sizes = [model.tensor_parallel_size, *(group.tensor_parallel_size or 1 for group in model.groups.values())]
    if max(sizes) > 1:
        remedy = (
            f"integers have not been tried with {key.removesuffix('quantization')}tensor_parallel_size above 1: use 1, or none"
        )
        yield Problem(key=key, value=chosen.value, remedy=remedy)
    if not model.trained:
        remedy = "no trainer quantizes this model: use none with a checkpoint that is quantized, which vLLM recognizes"
        yield Problem(key=key, value=chosen.value, remedy=f"{remedy}, or fp8_per_channel")
    elif (way := transport(config)) in DIRECT:
        remedy = f"integers and their scales are sent in files, and not by {way.value}: set cluster.weight_transfer=auto"
        yield Problem(key=key, value=chosen.value, remedy=remedy)


def _together(config: RunConfig, key: str, model: ServedModelConfig) -> Iterator[Problem]:
    is_weights = model.quantization is not Quantization.none
    key_of, value = (".quantization", model.quantization.value) if is_weights else (".kv_cache_dtype", model.kv_cache_dtype.value)
    if model.urls or model.api is ModelAPI.chat:
        remedy = "its servers are already running (urls), in the format that they were started with: remove this"
        yield Problem(key=f"{key}{key_of}", value=value, remedy=remedy)
    if config.deterministic and not config.cluster.gpus_per_node:
        remedy = "with deterministic=true quantized products and caches on a CPU would depend on the batch: remove this"
        yield Problem(key=f"{key}{key_of}", value=value, remedy=remedy)
    if is_weights and model.trained and sends_adapters(config):
        remedy = "adapters on a quantized base have not been tried: use serving.lora=merge, or none"
        yield Problem(key=f"{key}{key_of}", value=value, remedy=remedy)
    if is_weights and model.speculative.method is SpeculationMethod.early_exit:
        remedy = f"a draft of quantized layers has not been tried: use none, or {key}.speculative.method=ngram"
        yield Problem(key=f"{key}{key_of}", value=value, remedy=remedy)
    arguments = {f"{key}.vllm_args": model.vllm_args}
    arguments |= {f"{key}.groups.{name}.vllm_args": group.vllm_args for name, group in model.groups.items()}
    for where, given in arguments.items():
        for argument, own in given.items():
            if argument.replace("-", "_") in ARGUMENTS and own is not None:
                remedy = f"{key}{key_of}={value} says it already: remove one of them"
                yield Problem(key=f"{where}.{argument}", value=own, remedy=remedy)
