"""The whole room: a CUDA device that is not there, and one rank of a trainer on it. Import it before PyTorch.

    from tests.cuda import room            # the device, fake tensors, imagined ranks; then Megatron and vime
    room.enter(config, rank=0)             # process groups, and the numbers of tokens per expert
    engine = LockstepEngine(config)
    with room.MODE:
        engine.train(...)
    room.COUNTS.synchronizations, room.COUNTS.memory.peak

Shapes, dtypes, devices, collectives, memory and synchronizations are those of a device; numbers are not computed, kernels not
compiled, streams not ordered.
"""

from tests.cuda import device

device.load()

import contextlib  # noqa: E402
import sys  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402

from tests.cuda import collectives, experts, tensors  # noqa: E402
from tests.cuda.counts import COUNTS, waits, where  # noqa: E402
from tests.cuda.tensors import MODE  # noqa: E402

__all__ = ["COUNTS", "MODE", "enter", "where"]

CAPABILITY = (9, 0)
"""That of an H100."""


class Stream:
    """Replaces a CUDA stream; its work is done."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.cuda_stream = 0

    def wait_stream(self, _: Any) -> None:
        """Nothing to wait for."""

    def wait_event(self, _: Any) -> None:
        """Nothing to wait for."""

    def record_event(self, *_: Any) -> "Event":
        """An event that has happened."""
        return Event()

    def synchronize(self) -> None:
        """The host waits."""
        waits("stream")

    def query(self) -> bool:
        """True: all is done."""
        return True


class Event:
    """Replaces a CUDA event that has happened."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def record(self, *_: Any) -> None:
        """Happens at once."""

    def wait(self, *_: Any) -> None:
        """Nothing to wait for."""

    def synchronize(self) -> None:
        """The host waits."""
        waits("event")

    def query(self) -> bool:
        """True: it has happened."""
        return True

    def elapsed_time(self, _: Any) -> float:
        """One millisecond."""
        return 1.0


class Generator:
    """Replaces the device's generator of random numbers."""

    def get_state(self) -> torch.Tensor:
        """Some state."""
        return torch.zeros(16, dtype=torch.uint8)

    def set_state(self, *_: Any) -> None:
        """Any state will do."""

    def clone_state(self) -> "Generator":
        """Itself."""
        return self

    graphsafe_get_state = clone_state
    graphsafe_set_state = set_state

    def manual_seed(self, *_: Any) -> "Generator":
        """Itself."""
        return self


def _install_cuda() -> None:
    """`torch.cuda` as of a machine with one device."""
    answers: dict[str, Any] = {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "is_initialized": True,
        "is_bf16_supported": True,
        "get_device_capability": CAPABILITY,
        "get_device_name": "H100 that is not there",
        "memory_allocated": 0,
        "max_memory_allocated": 0,
        **dict.fromkeys(("_lazy_init", "set_device", "empty_cache", "ipc_collect", "manual_seed", "manual_seed_all")),
        "set_rng_state": None,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, lambda *_, _answer=answer, **__: _answer)
    cuda: Any = torch.cuda
    cuda.synchronize = lambda *_, **__: waits("device")
    cuda.get_rng_state = lambda *_, **__: torch.zeros(16, dtype=torch.uint8)
    cuda.Stream, cuda.Event, cuda.default_generators = Stream, Event, (Generator(),)
    cuda.current_stream = cuda.default_stream = lambda *_, **__: Stream()
    cuda.stream = lambda *_, **__: contextlib.nullcontext()
    cuda._lazy_call = lambda call, **_: call()
    cuda.nvtx.range_push = cuda.nvtx.range_pop = lambda *_: None
    torch._C._cuda_getDevice = lambda: 0  # type: ignore[attr-defined]
    torch.Tensor.pin_memory = lambda tensor, *_: tensor  # type: ignore[assignment,method-assign]
    torch.compile = lambda function=None, **_: COUNTS.memory.of_results(function) if function else COUNTS.memory.of_results  # type: ignore[assignment]


def enter(config: Any, *, rank: int = 0) -> None:
    """Makes this process one rank of the trainer of a run; once a process."""
    from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator

    from vime.trainer import megatron_setup, micro_batch, parallel

    assert not megatron_setup.set_up(), "the device is there"
    parallel.initialize(config.trainer, rank=rank, seed=0)
    if config.model.num_experts:
        experts.install(chosen=config.model.num_experts_per_token, num_experts=config.model.num_experts)
    build, longest = micro_batch._build, micro_batch.MicroBatches.longest.fget
    assert longest is not None
    shape: list[int] = []

    def build_outside(*args: Any, **options: Any) -> Any:
        """Rows are put together on the host, where tensors have values."""
        with tensors.outside():
            return build(*args, **options)

    def remember_longest(batches: Any) -> int:
        """Neighbouring stages send rows as long as ours."""
        split = config.trainer.tensor_parallel_size if config.trainer.sequence_parallel else 1
        found = longest(batches)
        shape[:] = [found // split, 1, config.model.hidden_size]
        return found

    micro_batch._build = build_outside
    micro_batch.MicroBatches.longest = property(remember_longest)  # type: ignore[assignment]
    P2PCommunicator._communicate_shapes = lambda *_, **__: (list(shape), list(shape))  # type: ignore[method-assign]


hidden: dict[str, Any] = sys.modules
hidden["vime.trainer.cpu"] = None  # an import of what is for processors alone fails
tensors.install()
_install_cuda()
collectives.install()
