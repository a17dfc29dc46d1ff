"""Drives a vLLM worker's weight updates, on vLLM's own modules and through its own calls, on the device that is not there.

    python -m tests.cuda.worker JOB.json

The job lists updates with their checkpoints; for each a child is forked, which writes its `Report` as JSON. Real are vLLM's
models, loaders, layerwise reload, transports and worker methods, and all of `vime.weights`. Stand-ins: vLLM's platform, which
answers for CUDA although this is its CPU build; the connection to the trainer, which checks what NCCL would refuse; memory that
the trainer shares; vLLM's parameters and their copies on "meta", which are made of fake tensors; the kernel of the experts.
"""

import dataclasses
import importlib
import json
import math
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

BUFFER_BYTES = 2**16
"""Size of a chunk of packed tensors, so small that a small model needs several."""
BUFFER_CHUNKS = 8
"""The same for the tensors that are digested together."""
COMMUNICATOR = "vllm.distributed.device_communicators.base_device_communicator.DeviceCommunicatorBase"
"""vLLM's without the kernels of any device."""
IMPORTED = (
    "vllm.engine.arg_utils",
    "vllm.model_executor.layers.fused_moe.experts.triton_moe",
    "vllm.model_executor.layers.quantization.online.base",
    "vllm.v1.worker.gpu_worker",
    "vime.inside_vllm.direct_transfer",
)
DEVICE_UUID = "GPU-that-is-not-there"


@dataclass(frozen=True, kw_only=True, slots=True)
class Update:
    """An update of one tensor-parallel rank's weights.

    Example: `Update(family="qwen3_moe", transport="ipc", size=2, rank=1)`.
    """

    family: str
    transport: str = "nccl"
    packed: bool = True
    size: int = 1
    """Number of tensor-parallel ranks."""
    rank: int = 0
    fault: str | None = None
    """One of `tests.cuda.faults`."""
    is_quick: bool = False
    """True if it is part of `make test`; the others are long tests."""

    @property
    def name(self) -> str:
        """For example `qwen3_moe-ipc-tensor2-rank1`."""
        words = [self.family, self.transport, *([] if self.packed else ["unpacked"]), f"tensor{self.size}", f"rank{self.rank}"]
        return "-".join([*words, *([self.fault] if self.fault else [])])


@dataclass(kw_only=True, slots=True)
class Report:
    """One rank's updates on the device; lists have an entry for each depth of the model."""

    error: str | None = None
    problems: dict[str, int] = field(default_factory=dict)
    """Refusals of the device or of NCCL, by line."""
    on_the_cpu: list[str] = field(default_factory=list)
    """Parameters and buffers that are not on the device after an update."""
    moved: list[str] = field(default_factory=list)
    """Weights that are in other memory than before, which captured graphs do not know."""
    waits: list[dict[str, dict[str, int]]] = field(default_factory=list)
    """Waits of the host in each call, by line."""
    blocking_copies: list[dict[str, int]] = field(default_factory=list)
    """Copies to the device for which the host waits, by line."""
    num_broadcasts: int = 0
    digests: list[dict[str, Any]] = field(default_factory=list)
    proofs: list[dict[str, Any]] = field(default_factory=list)


def run_all(updates: Sequence[Update], checkpoints: list[str], folder: Path) -> list[Report]:
    """The reports of updates, from one process; `checkpoints` has a folder of families per depth."""
    job = {"updates": [dataclasses.asdict(update) for update in updates], "checkpoints": checkpoints, "folder": str(folder)}
    path = folder / "job.json"
    path.write_text(json.dumps(job))
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    environment |= {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-m", "tests.cuda.worker", str(path)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return [Report(**json.loads((folder / f"{number}.json").read_text())) for number in range(len(updates))]


def main() -> None:
    """Runs the job of the command line."""
    job = json.loads(Path(sys.argv[1]).read_text())
    from tests.cuda import room

    del room
    _import_all()
    for number, entry in enumerate(job["updates"]):
        if (child := os.fork()) == 0:
            code = 1
            try:
                report = drill(Update(**entry), [Path(folder) for folder in job["checkpoints"]])
                (Path(job["folder"]) / f"{number}.json").write_text(json.dumps(dataclasses.asdict(report)))
                code = 0
            finally:
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        if status:
            raise SystemExit(f"{entry}: no report")


def _import_all() -> None:
    """Imports for every update, while vLLM's platform is the CPU: some modules look for CUDA's kernels when they are imported."""
    for name in IMPORTED:
        importlib.import_module(name)


def drill(update: Update, checkpoints: list[Path]) -> Report:
    """Two updates of a model of each depth."""
    from tests.cuda import faults, room

    report = Report()
    try:
        configs = [_config(update, folder / update.family) for folder in checkpoints]
        _stand_in()
        _join(configs[0], update)
        room.COUNTS.restart()  # vLLM's set-up of its own groups, some of which are the host's
        for config, folder in zip(configs, checkpoints, strict=True):
            with room.MODE:
                worker = _worker(config, update)
                if update.fault is not None and config is configs[0]:
                    faults.make(update.fault)
                _update(report, worker, update, folder / update.family)
    except Exception:  # reported, with the line
        report.error = traceback.format_exc()
    report.problems = dict(room.COUNTS.problems)
    report.num_broadcasts = sum(room.COUNTS.collectives.values())
    return report


def _update(report: Report, worker: Any, update: Update, checkpoint: Path) -> None:
    """The calls that a trainer's sender and its driver make on a server, twice; the second is reported."""
    from tests.cuda.room import COUNTS

    payload = _payload(checkpoint)
    before = _places(worker.model)
    init: dict[str, Any] = {"packed": update.packed}
    if update.transport == "nccl":
        init |= {"master_address": "127.0.0.1", "master_port": 1, "rank_offset": 1, "world_size": 1 + update.size}
        init |= {"packed_buffer_size_bytes": BUFFER_BYTES}
    worker.init_weight_transfer_engine(init)
    for _ in range(2):
        waits: dict[str, dict[str, int]] = {}
        COUNTS.blocking_copies.clear()

        def counted(call: str, *arguments: Any, waits: dict[str, dict[str, int]] = waits) -> Any:
            COUNTS.synchronizations.clear()
            returned = getattr(worker, call)(*arguments)
            found = waits.setdefault(call, {})
            for line, count in COUNTS.synchronizations.items():
                found[line] = found.get(line, 0) + count
            return returned

        counted("start_weight_update")
        for chunk in _chunks(payload, update):
            counted("update_weights", chunk)
        counted("finish_weight_update")
        digest, proof = counted("weight_report"), counted("weight_proof")
    report.waits.append(waits)
    report.blocking_copies.append(dict(COUNTS.blocking_copies))
    report.digests.append({**digest, "sent": len(payload)})
    report.proofs.append(proof)
    report.on_the_cpu += sorted(name for name, tensor in _tensors(worker.model) if tensor.device.type != "cuda")
    report.moved += sorted(name for name, place in _places(worker.model).items() if before.get(name, place) != place)


def _payload(checkpoint: Path) -> list[tuple[str, str, list[int]]]:
    """Name, dtype and shape of each tensor that a trainer would send."""
    from safetensors import safe_open

    with safe_open(checkpoint / "model.safetensors", framework="pt", device="cpu") as file:
        return [(name, "bfloat16", list(file.get_slice(name).get_shape())) for name in file.keys()]  # noqa: SIM118 (no dictionary)


def _chunks(payload: list[tuple[str, str, list[int]]], update: Update) -> Iterator[dict[str, Any]]:
    """The messages of a sender: one over NCCL, one for each filled buffer over CUDA's IPC."""
    if update.transport == "nccl":
        names, dtypes, shapes = zip(*payload)
        yield {"names": list(names), "dtype_names": list(dtypes), "shapes": list(shapes)}
        return
    rest = list(payload)
    while rest:
        sizes: list[int] = []
        while len(sizes) < len(rest) and sum(sizes) + 2 * math.prod(rest[len(sizes)][2]) <= BUFFER_BYTES:
            sizes.append(2 * math.prod(rest[len(sizes)][2]))
        names, dtypes, shapes = zip(*rest[: len(sizes)])
        rest = rest[len(sizes) :]
        handle = {DEVICE_UUID: tuple(range(10))}
        told = {"names": list(names), "dtype_names": list(dtypes), "shapes": list(shapes)}
        yield {**told, "ipc_handles": handle, "tensor_sizes": sizes}


def _config(update: Update, checkpoint: Path) -> Any:
    """vLLM's configuration of a server on a CPU, and then of one on the device."""
    import torch
    from vllm.engine.arg_utils import EngineArgs

    from vime.inside_vllm.plugin import register

    register()
    made = EngineArgs(
        model=str(checkpoint),
        load_format="dummy",
        dtype="bfloat16",
        enforce_eager=True,
        tensor_parallel_size=update.size,
        kv_cache_memory_bytes=2**24,
        block_size=32,
        max_model_len=256,
        weight_transfer_config={"backend": f"vime_{update.transport}"},  # type: ignore[arg-type]
    )
    config = made.create_engine_config()
    config.parallel_config.rank = update.rank
    config.device_config.device = torch.device("cuda:0")
    config.device_config.device_type = "cuda"
    return config


def _join(config: Any, update: Update) -> None:
    """Makes vLLM's process groups, with this process as one rank."""
    from vllm.config import set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel

    with set_current_vllm_config(config):
        init_distributed_environment(update.size, update.rank, "tcp://127.0.0.1:1", 0, "nccl")
        initialize_model_parallel(update.size)


def _worker(config: Any, update: Update) -> Any:
    """vLLM's GPU worker with our extension, its model and its transport, and without all that generates."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
    from vllm.model_executor.model_loader import get_model
    from vllm.v1.worker.gpu_worker import Worker

    from vime.inside_vllm.transfer import WeightReport

    kind: Any = type("ExtendedWorker", (Worker, WeightReport), {})
    worker = kind.__new__(kind)
    with set_current_vllm_config(config):
        worker.model = get_model(vllm_config=config)
    worker.vllm_config, worker.rank, worker.device = config, update.rank, torch.device("cuda:0")
    worker.model_runner = SimpleNamespace(reset_lora_state=lambda: None)
    worker._weight_update_active = worker._weight_update_is_draft = False
    worker.weight_transfer_engine = WeightTransferEngineFactory.create_engine(
        config.weight_transfer_config, config, worker.device, worker.model
    )
    return worker


def _tensors(model: Any) -> list[tuple[str, Any]]:
    return [*model.named_parameters(), *model.named_buffers()]


def _places(model: Any) -> dict[str, int]:
    return {name: tensor.untyped_storage().data_ptr() for name, tensor in _tensors(model)}


def _stand_in() -> None:
    """Everything that needs CUDA's build of vLLM, a trainer, or tensors with content."""
    import torch
    from vllm.distributed.device_communicators.shm_broadcast import MessageQueue
    from vllm.distributed.weight_transfer import nccl_engine
    from vllm.model_executor.layers.fused_moe.experts.triton_moe import TritonExperts
    from vllm.model_executor.model_loader import dummy_loader
    from vllm.platforms import PlatformEnum, current_platform
    from vllm.platforms.interface import DeviceCapability
    from vllm.v1.worker.workspace import init_workspace_manager

    from tests.cuda.room import CAPABILITY
    from vime.weights import words

    platform: Any = current_platform
    platform._enum, platform.device_type = PlatformEnum.CUDA, "cuda"
    type(platform).get_device_communicator_cls = classmethod(lambda _: COMMUNICATOR)
    type(platform).get_device_capability = classmethod(lambda *_, **__: DeviceCapability(*CAPABILITY))
    MessageQueue.create_from_process_group = staticmethod(lambda *_, **__: None)  # type: ignore[assignment]
    accelerator: Any = torch.accelerator
    cuda = torch.cuda
    accelerator.empty_cache = lambda: None
    accelerator.current_device_index = accelerator.max_memory_allocated = lambda *_: 0  # type: ignore[assignment]
    cuda.get_device_properties = lambda *_: SimpleNamespace(uuid=DEVICE_UUID)  # type: ignore[assignment]
    dummy_loader.initialize_single_dummy_weight = lambda *_, **__: None  # type: ignore[assignment]
    nccl_engine.worker_init_process_group = lambda *_: Group()  # type: ignore[assignment,return-value]
    torch.multiprocessing.reductions.rebuild_cuda_tensor = _shared  # type: ignore[assignment]
    TritonExperts.apply = _experts  # type: ignore[assignment,method-assign]
    words.WordSums.__init__.__defaults__ = (BUFFER_CHUNKS,)  # type: ignore[attr-defined]
    init_workspace_manager(torch.device("cuda:0"))
    _install_parameters()


class Group:
    """The trainer's group, in which all others are imagined."""

    def broadcast(self, tensor: Any, src: int, stream: Any = None) -> None:
        """Nothing arrives."""
        from tests.cuda import collectives

        assert src == 0, src
        collectives._check("broadcast", [tensor])

    def destroy(self) -> None:
        """Nothing to close."""


def _shared(*arguments: Any) -> Any:
    """The memory that a trainer shares."""
    import torch

    assert arguments[6] == 0, "a handle is opened on the worker's own device"
    return torch.empty(BUFFER_BYTES, dtype=torch.uint8, device="cuda:0")


def _experts(_: Any, output: Any, hidden_states: Any, w1: Any, w2: Any, topk_weights: Any, topk_ids: Any, **__: Any) -> None:
    """The experts' kernel: checks what it is given, and gives zeros."""
    import torch

    from tests.cuda.counts import refused

    for name, tensor in {"hidden": hidden_states, "w13": w1, "w2": w2, "weights": topk_weights, "experts": topk_ids}.items():
        if tensor.device.type != "cuda" or not tensor.is_contiguous():
            refused(f"experts of {name} on {tensor.device}, strides {tensor.stride()}")
    assert topk_ids.dtype in (torch.int32, torch.int64) and topk_ids.shape == topk_weights.shape == (len(hidden_states), 1)
    assert hidden_states.shape[1] == w1.shape[2] == w2.shape[1] and w1.shape[1] == 2 * w2.shape[2]
    assert output.shape == hidden_states.shape, output.shape
    output.zero_()


def _install_parameters() -> None:
    """vLLM's kinds of parameters, and their copies on "meta", of fake tensors: classes that are both.

    vLLM sets a tensor's class and attributes to those of another one, which would make a fake tensor an ordinary one, or give it
    the other's device.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensor
    from vllm.model_executor import parameter
    from vllm.model_executor.model_loader.reload import meta

    from tests.cuda.tensors import FAKE_ATTRIBUTES

    kinds: dict[Any, Any] = {}

    def new(kind: Any, data: Any, **_: Any) -> Any:
        if not isinstance(data, FakeTensor):
            return torch.nn.Parameter.__new__(kind, data, False)
        made = data.detach()
        if not issubclass(kind, FakeTensor):
            kind = kinds.setdefault(kind, type(kind.__name__, (FakeTensor, kind), {"__init__": kind.__init__}))
        made.__class__, made._is_param = kind, True
        return made

    def dressed(blank: Any, like: Any) -> Any:
        blank.__dict__.update({name: value for name, value in vars(like).items() if name not in FAKE_ATTRIBUTES})
        blank.__class__ = type(like)
        return blank

    def materialize(blank: Any) -> Any:
        made = torch.empty_strided(size=tuple(blank.size()), stride=tuple(blank.stride()), dtype=blank.dtype)
        return dressed(made, blank)

    parameter.BasevLLMParameter.__new__ = staticmethod(new)  # type: ignore[assignment,method-assign]
    meta.to_meta_tensor = lambda tensor: dressed(tensor.data.to("meta"), tensor)
    meta.materialize_meta_tensor = materialize


if __name__ == "__main__":
    main()
