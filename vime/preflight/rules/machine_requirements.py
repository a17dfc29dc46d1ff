"""Requirements on this machine: GPUs, files, free ports, disk space, keys. `mode=plan` leaves these rules out,
but for that of the run folder.
"""

import errno
import json
import os
import re
import shutil
import socket
import stat
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import psutil

from vime.cluster.accelerators import CPU_BUILD, installed_build, num_gpus, why_no_device
from vime.cluster.placement import DIRECT, memory_share, server_groups, transport
from vime.cluster.ports import why_silent
from vime.config import AlgorithmName, Mode, ModelAPI, RunConfig, TrackerName, WeightTransfer
from vime.data.file_formats import kind_of
from vime.errors import ConfigError, Problem
from vime.machine import available_memory_bytes, memory_bytes
from vime.model.architecture import check_shape, read_architecture
from vime.model.size import BYTES, checkpoint_bytes, num_parameters
from vime.model.tokenizer import tokenizer_problems
from vime.preflight.rules.data import datasets
from vime.preflight.rules.serving import VARIABLE, port_settings

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
GIB = 2**30
CUT_BY_RAY = "'\\"
ONLINE = "online"
"""wandb's own word for its mode."""


def gpus(config: RunConfig) -> list[Problem]:
    """Build, driver and devices of this machine are those of the cluster, unless the run uses a running Ray cluster."""
    cluster, build, found = config.cluster, installed_build(), num_gpus()
    key, value = "cluster.gpus_per_node", config.cluster.gpus_per_node
    if cluster.ray_address is not None:
        return []
    if cluster.gpus_per_node == 0:
        if build == CPU_BUILD:
            return []
        choice = "choose cluster=auto" if found else "this machine has no GPU"
        remedy = f"the GPU build of vLLM is installed, which runs on GPUs only: {choice}, or VIME_SETUP=cpu make setup"
        return [Problem(key=key, value=value, remedy=f"{remedy}; mode=plan needs no GPU")]
    if found < cluster.gpus_per_node:
        fits = {0: "cluster=laptop", 1: "cluster=one_gpu"}.get(found, f"cluster.gpus_per_node={found}")
        number = f"{found} GPU{'' if found == 1 else 's'}"
        remedy = f"this machine has {number}: choose {fits}, or set cluster.ray_address; mode=plan needs no GPU"
        return [Problem(key=key, value=value, remedy=remedy)]
    reason = why_no_device(build)
    return [] if reason is None else [Problem(key=key, value=value, remedy=f"{reason}; mode=plan needs no GPU")]


def checkpoint(config: RunConfig) -> list[Problem]:
    """The trained model's checkpoint can be read, is complete, and has the configured shape."""
    key, value = "model.checkpoint", config.model.checkpoint
    if not value:
        return []
    problems = checkpoint_problems(key, value)
    if problems or not Path(value).is_dir():
        return problems
    try:
        architecture = read_architecture(Path(value), rope_parameters=config.model.rope_parameters)
        problems += _length_problems(config, architecture.max_position_embeddings)
        check_shape(architecture, config.model)
    except ConfigError as error:
        problems += error.problems
    except KeyError as error:
        problems.append(Problem(key=key, value=value, remedy=f"its config.json has no {error}"))
    return problems + tokenizer_problems(Path(value), key=key, value=value)


def _length_problems(config: RunConfig, length: int) -> list[Problem]:
    """The model is not longer than its checkpoint, whose positions beyond are untrained."""
    if config.model.max_position_embeddings <= length:
        return []
    remedy = f"its checkpoint has {length}: use that, or scale its rotary embeddings with model.rope_parameters"
    return [Problem(key="model.max_position_embeddings", value=config.model.max_position_embeddings, remedy=remedy)]


def served_checkpoints(config: RunConfig) -> list[Problem]:
    """The checkpoints of frozen models can be read."""
    return [
        problem
        for name, model in config.serving.models.items()
        if model.checkpoint
        for problem in checkpoint_problems(f"serving.models.{name}.checkpoint", model.checkpoint)
    ]


def ports_free(config: RunConfig) -> list[Problem]:
    """No program listens on a chosen port."""
    problems = []
    for _, key, model in port_settings(config):
        for port in range(model.port, model.port + model.num_replicas) if model.port > 0 else ():
            if port <= 65535 and not is_free(config.cluster.host, port):
                remedy = f"port {port} on {config.cluster.host} is in use: choose another, or 0 for a free one"
                problems.append(Problem(key=key, value=model.port, remedy=remedy))
    return problems


def api_keys(config: RunConfig) -> list[Problem]:
    """The environment has the API keys of endpoints."""
    problems = []
    for name, model in config.serving.models.items():
        variable = model.chat.api_key_variable
        if model.api is not ModelAPI.chat or variable is None or not VARIABLE.fullmatch(variable):
            continue
        if not os.environ.get(variable):
            remedy = f"this environment variable is not set: export {variable}=… before the run (on all nodes), or use null"
            problems.append(Problem(key=f"serving.models.{name}.chat.api_key_variable", value=variable, remedy=remedy))
    return problems


def files(config: RunConfig) -> list[Problem]:
    """Data files exist."""
    problems = []
    for key, dataset in datasets(config).items():
        path = dataset.path
        if not path or "://" in path or Path(path).exists():
            continue
        is_file = kind_of(path) or path.startswith(("/", ".", "~"))
        if is_file or not (_HUB_ID.fullmatch(path) or re.fullmatch(r"[\w.-]+", path)):
            remedy = f"there is no such file (in {Path.cwd()}): use an existing file or a Hugging Face id"
            problems.append(Problem(key=f"{key}.path", value=path, remedy=remedy))
    return problems


def run_folder(config: RunConfig) -> list[Problem]:
    """The run folder holds no other run, unless it is resumed."""
    folder = Path(config.output_dir or ".")
    if config.resume or not (folder / "config.yaml").exists():
        return []
    remedy = "the folder already holds a run: choose another one, or add resume=true to continue it"
    return [Problem(key="output_dir", value=config.output_dir, remedy=remedy)]


def run_folder_can_be_made(config: RunConfig) -> list[Problem]:
    """The run folder can be made and written; the check leaves nothing behind. It is the only rule here that a plan applies."""
    folder = Path(config.output_dir or ".").absolute()
    if (reason := why_not_made(folder)) is None:
        return []
    remedy = f"the run folder cannot be made: {reason}. Choose another with output_dir or name"
    return [Problem(key="output_dir", value=config.output_dir, remedy=remedy)]


def why_not_made(folder: Path) -> str | None:
    """The reason why a folder cannot be made and written, or None."""
    reason: str | None = None
    for place in (folder, *folder.parents):
        try:
            is_folder = stat.S_ISDIR(os.stat(place).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:  # a name that is too long, a loop of links, a folder that may not be entered
            reason = f"{error.strerror} ({shortened(str(place))})"
            if error.errno == errno.ENAMETOOLONG:  # of which name, a folder above it knows
                continue
            return reason
        if not is_folder:
            return f"{place} is a file"
        try:
            longest = os.pathconf(place, "PC_NAME_MAX")
            if too_long := [part for part in folder.relative_to(place).parts if len(os.fsencode(part)) > longest]:
                return f"{shortened(too_long[0])} has more than {longest} bytes"
            with tempfile.TemporaryFile(dir=place):
                return reason
        except OSError as error:
            return f"{error.strerror} in {place}"
    return "there is no folder above it"


def interpreter(config: RunConfig) -> list[Problem]:
    """Ray can start this Python: Ray splits a worker's command line at quotes of any kind, which cannot be escaped."""
    path = sys.executable
    if config.cluster.ray_address is not None or not set(path) & set(CUT_BY_RAY):
        return []
    remedy = "Ray starts no worker by a path with an apostrophe or a backslash: move the environment, or link to it elsewhere"
    return [Problem(key="python", value=path, remedy=f"{remedy} and start the run by that")]


def shortened(text: str) -> str:
    """A text that is too long for the screen, with its middle left out."""
    return text if len(text) <= 200 else f"{text[:100]}…{text[-60:]}"


def disk(config: RunConfig) -> list[Problem]:
    """There is disk space for the checkpoints."""
    if config.mode is not Mode.train:
        return []
    folder = Path(config.output_dir or ".").absolute()
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    one = checkpoint_bytes(config.model, config.trainer, config.algorithm.critic.place)
    kept = config.trainer.keep_checkpoints + (config.trainer.keep_best is not None)
    needed, free = (kept + 1) * one, shutil.disk_usage(existing).free
    if free < GIB:
        remedy = (
            f"{existing} has only {free / 2**20:.0f} MiB left, and a run needs at least 1 GiB: use an output_dir on another disk"
        )
        return [Problem(key="output_dir", value=config.output_dir, remedy=remedy)]
    if needed <= free:
        return []
    remedy = (
        f"{kept} checkpoints of {one / GIB:.1f} GiB and the one being written need "
        f"{needed / GIB:.0f} GiB, but {existing} has {free / GIB:.0f} GiB: keep fewer, or use an output_dir on another disk"
    )
    return [Problem(key="trainer.keep_checkpoints", value=config.trainer.keep_checkpoints, remedy=remedy)]


def shared_memory(config: RunConfig) -> list[Problem]:
    """Shared memory has room for the weights that servers read from files, at every sync or when a server restarts."""
    shared, cluster = Path("/dev/shm"), config.cluster
    if cluster.ray_address is None and psutil.LINUX and (reason := why_not_made(shared / "vime")) is not None:
        remedy = f"shared memory, in which Ray keeps its objects, takes no files ({reason}): mount a tmpfs at {shared}"
        return [Problem(key="cluster.ray_address", value=cluster.ray_address, remedy=remedy)]
    if config.mode is not Mode.train or config.algorithm.name is AlgorithmName.sft or cluster.num_nodes > 1:
        return []
    way = transport(config)
    if way not in (WeightTransfer.shm, *DIRECT) or not shared.exists():
        return []
    versions = 1 if way in DIRECT else 2  # at a sync the version before is still there
    needed, free = versions * num_parameters(config.model) * BYTES[config.trainer.precision], shutil.disk_usage(shared).free
    if needed <= free:
        return []
    what = "the weights for a restarted server" if way in DIRECT else "two versions of the weights"
    remedy = f"{what} need {needed / GIB:.1f} GiB, but {shared} has {free / GIB:.1f} GiB free: enlarge it, or use disk"
    return [Problem(key="cluster.weight_transfer", value=cluster.weight_transfer.value, remedy=remedy)]


def host_memory(config: RunConfig) -> list[Problem]:
    """Without GPUs, the caches of all servers that the run starts fit into the free memory; a server whose own cache does not fit
    ends at its start."""
    cluster = config.cluster
    if cluster.gpus_per_node or cluster.ray_address is not None:
        return []
    shares = {
        group.name: (name, group.settings.num_replicas * memory_share(config, group.settings))
        for name, model in config.serving.models.items()
        for group in server_groups(name, model)
    }
    wanted, free = sum(share for _, share in shares.values()), available_memory_bytes() / memory_bytes()
    if wanted <= free:
        return []
    name, largest = max(shares.values(), key=lambda share: share[1])
    parts = " + ".join(f"{share:g} ({group})" for group, (_, share) in shares.items())
    remedy = (
        f"without GPUs this is a share of this machine's {memory_bytes() / GIB:.1f} GiB of memory, of which {free:.2f} is free, "
    )
    remedy += f"but the servers would keep {parts} for their caches: 0.05 is enough for small models"
    return [Problem(key=f"serving.models.{name}.gpu_memory_utilization", value=largest, remedy=remedy)]


def ray_answers(config: RunConfig) -> list[Problem]:
    """A Ray cluster answers at the given address; Ray itself would go on asking for many minutes."""
    given = config.cluster.ray_address
    if given is None:
        return []
    key = "cluster.ray_address"
    host, _, port = _ray_address(given).removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        why = "no cluster is known on this machine" if given == "auto" else "that is no address"
        return [Problem(key=key, value=given, remedy=f"{why}: use HOST:PORT, or null for a Ray of its own")]
    if (reason := why_silent(host.strip("[]"), int(port))) is None:
        return []
    remedy = f"no Ray answers there ({reason}): start it (scripts/ray_up.sh), or use null for a Ray of its own"
    return [Problem(key=key, value=given, remedy=remedy)]


def _ray_address(given: str) -> str:
    """Ray's meaning of `auto`: the cluster of the environment, or the last one that was started on this machine."""
    if given != "auto":
        return given
    file = Path(os.environ.get("RAY_TMPDIR", "/tmp")) / "ray" / "ray_current_cluster"
    return os.environ.get("RAY_ADDRESS") or (file.read_text().strip() if file.is_file() else "")


def address(config: RunConfig) -> list[Problem]:
    """Servers on this machine can listen on the given address."""
    cluster = config.cluster
    if cluster.ray_address is not None:
        return []
    with socket.socket() as probe:
        try:
            probe.bind((cluster.host, 0))
        except OSError as error:
            remedy = f"servers cannot listen there ({error.strerror or error}): use 127.0.0.1, or an address of this machine"
            return [Problem(key="cluster.host", value=cluster.host, remedy=remedy)]
    return []


def tracker_package(config: RunConfig) -> list[Problem]:
    """The tracker's package is installed; those of MLflow and Trackio are not part of the set-up."""
    name = config.logger.tracker.value
    if config.logger.tracker not in (TrackerName.mlflow, TrackerName.trackio) or find_spec(name) is not None:
        return []
    remedy = f"the package {name} is not installed: pip install 'vime[loggers]', or choose logger=tensorboard"
    return [Problem(key="logger.tracker", value=name, remedy=remedy)]


def tracker_key(config: RunConfig) -> list[Problem]:
    """Weights & Biases has a key, unless it is offline."""
    logger = config.logger
    if logger.tracker is not TrackerName.wandb or logger.offline or os.environ.get("WANDB_API_KEY"):
        return []
    if os.environ.get("WANDB_MODE", ONLINE) != ONLINE:
        return []
    netrc = Path(os.environ.get("NETRC", "~/.netrc")).expanduser()
    if netrc.exists() and "wandb" in netrc.read_text():
        return []
    remedy = (
        "Weights & Biases needs a key: set the environment variable WANDB_API_KEY, or WANDB_MODE=offline, or choose logger=none"
    )
    return [Problem(key="logger.tracker", value="wandb", remedy=remedy)]


def checkpoint_problems(key: str, value: str) -> list[Problem]:
    """Reasons why a folder or a Hugging Face id cannot be read as a checkpoint."""
    folder = Path(value)
    if not folder.is_dir():
        return _hub_problems(key, value)
    if not (folder / "config.json").exists():
        return [Problem(key=key, value=value, remedy="the folder has no config.json: use a Hugging Face checkpoint")]
    problems = []
    try:
        json.loads((folder / "config.json").read_text())
    except (json.JSONDecodeError, UnicodeDecodeError, OSError) as error:
        return [Problem(key=key, value=value, remedy=f"its config.json cannot be read ({error}): download the checkpoint again")]
    if not any((folder / name).exists() for name in TOKENIZER_FILES):
        remedy = f"the folder has no tokenizer (none of {', '.join(TOKENIZER_FILES)}): copy the model's tokenizer into it"
        problems.append(Problem(key=key, value=value, remedy=remedy))
    if not any(folder.glob("*.safetensors")):
        problems.append(Problem(key=key, value=value, remedy="the folder has no *.safetensors: use a checkpoint with weights"))
    return problems


def _hub_problems(key: str, value: str) -> list[Problem]:
    if value.startswith(("/", ".", "~")) or not _HUB_ID.fullmatch(value):
        return [Problem(key=key, value=value, remedy="there is no such folder: use an existing folder or a Hugging Face id")]
    if os.environ.get("HF_HUB_OFFLINE", "0").lower() not in ("1", "true", "yes", "on"):
        return []
    from huggingface_hub import try_to_load_from_cache

    if isinstance(try_to_load_from_cache(value, "config.json"), str):
        return []
    remedy = "HF_HUB_OFFLINE is set and the model is not in the cache: download it first (hf download), or use a folder"
    return [Problem(key=key, value=value, remedy=remedy)]


def is_free(host: str, port: int) -> bool:
    """True if no program listens on a port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.errno != errno.EADDRINUSE
    return True
