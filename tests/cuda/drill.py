"""Drives the trainer's engine through its public calls on the device that is not there, one process per layout.

    python -m tests.cuda.drill JOB.json

The job lists layouts with their checkpoints; each may name a fault (`faults.py`) that is made first. Megatron and vime are
imported once; for every layout a child is forked, which writes its `Report` as JSON.
"""

import dataclasses
import json
import os
import random
import subprocess
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.cuda.layouts import Layout

LENGTHS = [(20, 30), (31, 9), (5, 45), (12, 12), (40, 3)]
"""Tokens of prompt and response of the sequences of an update, once for each data-parallel rank."""
ROW_TOKENS = 512


@dataclass(kw_only=True, slots=True)
class Report:
    """The work of one rank of a layout on the device.

    Example: `Report(error=None, problems={}, on_the_cpu=[], synchronizations=[{"vime/trainer/step.py:85": 1}, …], …)`.
    """

    error: str | None = None
    problems: dict[str, int] = field(default_factory=dict)
    """Refusals of the device or of NCCL, by line."""
    on_the_cpu: list[str] = field(default_factory=list)
    """Parameters, buffers and optimizer state that are not on the device."""
    synchronizations: list[dict[str, int]] = field(default_factory=list)
    blocking_copies: dict[str, int] = field(default_factory=dict)
    """Copies to the device for which the host waits in a training step, by line."""
    """Waits of the host in a training step, by line, for each depth of the model."""
    metrics: dict[str, float] = field(default_factory=dict)
    num_exported: int = 0
    num_logprobs: int = 0
    num_saved: int = 0
    optimizer_extra_bytes: int = 0
    """Memory that an optimizer step takes on top of what is there before it."""
    largest_bytes: int = 0
    """The largest gradient of this rank, which clipping takes once more."""
    owned_bytes: int = 0
    """Weights, gradients and optimizer state."""
    offloaded_bytes: int = 0
    """Bytes that left the device when all of these were to leave."""
    onloaded_bytes: int = 0
    """Change on the device by offloading and onloading."""


def run_all(drills: Sequence[tuple[Layout, str | None]], checkpoints: list[str], folder: Path) -> list[Report]:
    """The reports of layouts, each with a fault or None, from one process; `checkpoints` has a folder of families per depth."""
    job = {
        "drills": [{"layout": dataclasses.asdict(layout), "fault": fault} for layout, fault in drills],
        "checkpoints": checkpoints,
        "folder": str(folder),
    }
    path = folder / "job.json"
    path.write_text(json.dumps(job))
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-m", "tests.cuda.drill", str(path)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return [Report(**json.loads((folder / f"{number}.json").read_text())) for number in range(len(drills))]


def main() -> None:
    """Runs the job of the command line."""
    job = json.loads(Path(sys.argv[1]).read_text())
    from tests.cuda import room

    del room
    _import_all()
    for number, entry in enumerate(job["drills"]):
        if (child := os.fork()) == 0:
            code = 1
            try:
                layout, checkpoints = Layout(**entry["layout"]), [Path(folder) for folder in job["checkpoints"]]
                report = drill(layout, checkpoints, fault=entry["fault"])
                (Path(job["folder"]) / f"{number}.json").write_text(json.dumps(dataclasses.asdict(report)))
                code = 0
            finally:
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        if status:
            raise SystemExit(f"{entry}: no report")


def _import_all() -> None:
    """Imports for every layout; nothing may be computed before a fork."""
    import vime.trainer.engine
    import vime.weights.payload  # noqa: F401


def drill(layout: Layout, checkpoints: list[Path], *, fault: str | None) -> Report:
    """Everything that a trainer does with its engine, under one layout."""
    from tests.cuda import faults, room

    report = Report()
    try:
        configs = [_config(layout, folder / layout.family) for folder in checkpoints]
        room.enter(configs[0], rank=layout.rank)
        if fault is not None:
            faults.make(fault)
        for config in configs:
            _train(report, config, whole=config is configs[0])
    except Exception:  # reported, with the line
        report.error = traceback.format_exc()
    report.problems = dict(room.COUNTS.problems)
    return report


def _train(report: Report, config: Any, *, whole: bool) -> None:
    from tests.cuda.room import COUNTS, MODE
    from vime.trainer.lockstep import LockstepEngine

    engine = LockstepEngine(config)
    samples = _samples(config)
    with MODE:
        _lesson(engine, samples, 0)
        COUNTS.synchronizations.clear()
        COUNTS.blocking_copies.clear()
        report.metrics = _lesson(engine, samples, 1)
        report.synchronizations.append(dict(COUNTS.synchronizations))
        report.blocking_copies |= COUNTS.blocking_copies
        report.on_the_cpu += _on_the_cpu(engine)
        if whole:
            _optimizer_step(report, engine, samples)
            _other_calls(report, engine)


def _lesson(engine: Any, samples: list[Any], step: int) -> Any:
    """The updates of a batch, the critic's first."""
    if engine.critic is not None:
        engine.critic.train([samples], step)
    return engine.train([samples], step)


def _optimizer_step(report: Report, engine: Any, samples: list[Any]) -> None:
    from tests.cuda.room import COUNTS
    from vime.trainer.shard import PackedUpdate

    shard = PackedUpdate.of(engine.config, engine.algorithm, samples, version=2).shard(_data_rank())
    shard = shard.with_known(engine.forward(shard, engine.algorithm.needs_of_loss(is_present=True)))
    engine.forward_backward(shard, engine.algorithm)
    COUNTS.memory.restart()
    before = COUNTS.memory.live
    engine.step(optimizer={"lr": engine.config.trainer.lr})
    report.optimizer_extra_bytes = COUNTS.memory.peak - before
    report.largest_bytes = max(tensor.nbytes for name, tensor in _state(engine) if name == "exp_avg_sq")


def _other_calls(report: Report, engine: Any) -> None:
    """Export, digest, logprobs, memory that leaves and returns, and the state of a checkpoint."""
    from tests.cuda.room import COUNTS
    from vime.trainer import checkpoint
    from vime.weights.payload import WeightDigest

    digest = WeightDigest()
    for number, (name, tensor) in enumerate(engine.export()):
        assert tensor.device.type == "cuda", f"{name} is exported on {tensor.device}"
        digest.update(f"{number} {name}", tensor)
    report.num_exported = digest.num_tensors
    sequences = [[1, 2, 3, 4, 5, 6]] * 8
    report.num_logprobs = len(engine.logprobs(sequences, [3] * len(sequences), 1.0))
    report.owned_bytes, before = _owned_bytes(engine), COUNTS.memory.live
    engine.offload(weights=False)
    assert sum(1 for _ in engine.export()) == report.num_exported
    engine.offload(weights=True)
    report.offloaded_bytes = before - COUNTS.memory.live
    engine.onload()
    report.onloaded_bytes = COUNTS.memory.live - before
    _lesson(engine, _samples(engine.config), 3)
    report.num_saved = len(checkpoint._state(engine.model, engine.optimizer)["tensors"])
    if engine.critic is not None:
        report.num_saved += len(checkpoint._state(engine.critic.model, engine.critic.optimizer)["tensors"])


def _config(layout: Layout, checkpoint: Path) -> Any:
    from vime.config import (
        ClusterConfig,
        CriticPlace,
        Family,
        ModelConfig,
        Precision,
        RunConfig,
        TrainedQuantization,
        TrainerConfig,
    )
    from vime.model.architecture import read_architecture

    shape = read_architecture(checkpoint)
    names = [name.name for name in dataclasses.fields(ModelConfig) if hasattr(shape, name.name) and name.name != "family"]
    quantization = TrainedQuantization(layout.trainer.get("quantization", "none"))
    trainer: dict[str, Any] = {"precision": "bfloat16", "lr": 1e-3, "max_tokens_per_micro_batch": ROW_TOKENS, **layout.trainer}
    fields: dict[str, Any] = {name: getattr(shape, name) for name in names}
    config = RunConfig(
        model=ModelConfig(**fields | {"checkpoint": str(checkpoint), "family": Family(shape.family)}),
        trainer=TrainerConfig(**{**trainer, "precision": Precision(trainer["precision"]), "quantization": quantization}),
        cluster=ClusterConfig(gpus_per_node=1, num_trainer_gpus=1),
    )
    config.algorithm.kl_coefficient, config.algorithm.critic.place = layout.kl_coefficient, CriticPlace(layout.critic)
    config.trainer.lora.rank = layout.lora_rank
    return config


def _samples(config: Any) -> list[Any]:
    from vime.types import Sample

    generator = random.Random(0)
    return [
        Sample(
            tokens=[generator.randrange(config.model.vocab_size) for _ in range(prompt + response)],
            loss_mask=[1] * response,
            columns={
                "logprob": [-5.0] * response,
                "advantage": generator.gauss(0, 1),
                "weight": 0.01,
                "returns": 0.5,
                "value": 0.0,
            },
        )
        for prompt, response in LENGTHS * 4 * config.trainer.data_parallel_size
    ]


def _data_rank() -> int:
    from megatron.core import parallel_state

    return parallel_state.get_data_parallel_rank()


def _state(engine: Any) -> list[tuple[str, Any]]:
    chain = getattr(engine.optimizer, "chained_optimizers", [engine.optimizer])
    states = [state for link in chain if link.optimizer is not None for state in link.optimizer.state.values()]
    return [(name, tensor) for state in states for name, tensor in state.items()]


def _tensors(engine: Any) -> list[tuple[str, Any]]:
    """All that a trainer owns, by name or kind."""
    tensors = [*engine.model.named_parameters(), *engine.model.named_buffers(), *_state(engine)]
    for part in engine.wrapped:
        tensors += [("gradients", buffer.grad_data) for buffer in (*part.buffers, *part.expert_parallel_buffers)]
    groups = engine.optimizer.param_groups
    tensors += [("master weights", parameter) for group in groups for parameter in group["params"]]
    return tensors if engine.critic is None else tensors + _tensors(engine.critic)


def _on_the_cpu(engine: Any) -> list[str]:
    return sorted({name for name, tensor in _tensors(engine) if tensor.device.type != "cuda"})


def _owned_bytes(engine: Any) -> int:
    storages = (tensor.untyped_storage() for _, tensor in _tensors(engine))
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


if __name__ == "__main__":
    main()
