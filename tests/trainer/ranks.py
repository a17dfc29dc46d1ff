"""The ranks of a trainer under each layout of a job, forked from one process that has imported everything.

    python ranks.py JOB.json

The job lists layouts with their checkpoints and a folder; rank i of a layout writes what it saw into `LAYOUT/rank{i}.json`. Every
layout has processes of its own: gloo's threads stay when a group has been destroyed, and a few hundred of them slow all down.
"""

import importlib.util
import json
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from vime.trainer import megatron_setup

megatron_setup.set_up()

import torch  # noqa: E402
from megatron.core import parallel_state  # noqa: E402

from tests.trainer.forked import fork_ranks  # noqa: E402
from vime.cluster.layout import Position, layers_of, position_of, world_size  # noqa: E402
from vime.memory.activations import activation_bytes  # noqa: E402
from vime.model.size import BYTES  # noqa: E402
from vime.trainer import logprob, parallel  # noqa: E402
from vime.trainer.cpu import rows  # noqa: E402
from vime.trainer.lockstep import LockstepEngine  # noqa: E402
from vime.trainer.saved_tensors import kept_bytes  # noqa: E402
from vime.trainer.shard import PackedUpdate  # noqa: E402
from vime.weights.export import write_payload  # noqa: E402

DEFAULTS = {"max_tokens_per_micro_batch": 200, "num_threads": 1}
ROW = [60, 40, 28]
"""Lengths of sequences."""
LOGITS_IN_CHUNK = 160 * 20
"""Long rows are projected in chunks, short ones at once."""


def load_fixtures() -> Any:
    """The functions of `conftest.py`, which is no importable module."""
    spec = importlib.util.spec_from_file_location("trainer_fixtures", Path(__file__).with_name("conftest.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(fixtures: Any, config: Any, layout: dict[str, Any], rank: int, folder: Path) -> dict[str, Any]:
    """Logprobs, two updates and an export under one layout; with `resume` a checkpoint between them."""
    parallel.initialize(config.trainer, rank=rank, store=meet(rank, folder), seed=0)
    assert not (torch.full((64,), 1e-30) * 1e-10).any(), "tiny numbers are 0, and no slow ones"
    assert position_of(rank, config.trainer) == megatron_place(), f"rank {rank}"
    samples, other = fixtures.build_samples(13), other_adapters(config)
    if layout["is_cut"]:
        samples = fixtures.with_likeliest(config, samples)
    samples = fixtures.replaying(config, samples, layout["replay"])
    engine = LockstepEngine(config, beside=other)
    layers: list[Any] = [layer.layer_number for part in engine.model.parts for layer in part.decoder.layers]
    expected = layers_of(position_of(rank, config.trainer).pipeline, config.trainer, config.model.num_layers)
    assert layers == [number + 1 for run in expected for number in run], f"rank {rank}: {layers}, {expected}"
    logprobs = engine.logprobs([s.tokens for s in samples], [s.response_length for s in samples], 1.0)
    metrics = [engine.train([samples], 0)]
    if other is not None:  # whose steps must not be seen in what follows
        other.activate()
        other.train([samples[1:5]], 0)
        engine.activate()
    if layout["resume"]:
        engine.save(folder / "checkpoint")
    metrics.append(engine.train([samples[:1]], 1))
    if layout["resume"]:
        engine.load(folder / "checkpoint")
        metrics.append(engine.train([samples[:1]], 1))
    engine.save_hugging_face(folder / "model")
    if config.trainer.lora.rank:
        engine.save_adapter(folder / "adapter")
    shapes = [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in engine.export()]
    assert shapes == engine.exported_shapes(), f"rank {rank}: what an export is said to yield is not what it yields"
    payload = write_payload(engine.export(), folder=folder / "weights", version=1, bucket_bytes=60_000)
    report = {
        "metrics": metrics,
        "kept": kept(engine),
        "logprobs": {str(index): values for index, values in logprobs.items()},
        "digest": payload.digest,
        "num_files": len(payload.files),
        "row_lengths": row_lengths(engine, config, samples),
    }
    parallel.shutdown()
    return report


def other_adapters(config: Any) -> LockstepEngine | None:
    """An engine with whose adapters those of the configuration share a model; None without adapters."""
    lora = config.trainer.lora
    if not lora.rank:
        return None
    smaller = replace(lora, rank=2, start=None, targets=lora.targets[:2])
    return LockstepEngine(replace(config, trainer=replace(config.trainer, lora=smaller)))


def row_lengths(engine: LockstepEngine, config: Any, samples: list[Any]) -> list[int]:
    """Tokens of this rank's part of each row."""
    shard = PackedUpdate(config, samples).shard(parallel_state.get_data_parallel_rank())
    batches = engine._micro_batches(shard, only_trained=True)
    lengths = [batch.tokens_T.numel() for batch in batches]
    assert batches.longest == max(lengths)
    return lengths


def kept(engine: Any) -> tuple[float, float] | None:
    """Bytes that the forward pass of a row keeps, counted and by the plan's formula; None if a rank has no whole row."""
    trainer, model = engine.config.trainer, engine.config.model
    if trainer.pipeline_parallel_size * trainer.context_parallel_size > 1:
        return None
    formula = activation_bytes(engine.config, sum(ROW)) - sum(ROW) * model.hidden_size * BYTES[trainer.precision]
    with patch.object(rows, "library", lambda _: None):  # they keep less: no copies of queries and keys
        return kept_bytes(engine.model, ROW), formula


def meet(rank: int, folder: Path) -> Any:
    """The store that rank 0 opens for this folder, at which its ranks meet."""
    path = folder / "address"
    if rank == 0:
        folder.mkdir(parents=True, exist_ok=True)
        store, written = parallel.open_store("127.0.0.1"), folder / ".address"
        written.write_text(f"127.0.0.1:{store.port}")
        written.rename(path)
        return store
    while not path.exists():
        time.sleep(0.002)
    return parallel.store_at(path.read_text())


def megatron_place() -> Position:
    """The position of this rank by Megatron's own groups."""
    return Position(
        tensor=parallel_state.get_tensor_model_parallel_rank(),
        context=parallel_state.get_context_parallel_rank(),
        data=parallel_state.get_data_parallel_rank(),
        pipeline=parallel_state.get_pipeline_model_parallel_rank(),
        expert=parallel_state.get_expert_model_parallel_rank(),
    )


def main(rank: int, layout: dict[str, Any], config: Any, folder: Path) -> None:
    """Runs a layout as one of its ranks."""
    logprob.LOGITS_IN_CHUNK = LOGITS_IN_CHUNK
    (folder / f"rank{rank}.json").write_text(json.dumps(run(load_fixtures(), config, layout, rank, folder)))


def configuration(layout: dict[str, Any]) -> Any:
    """The configuration of a layout."""
    config = load_fixtures().build_config(Path(layout["model"]), lora=layout["lora"], **DEFAULTS | layout["trainer"])
    config.algorithm.kl_coefficient, config.algorithm.entropy_coefficient = 0.05, 0.01
    config.algorithm.loss = layout["loss"]
    return config


if __name__ == "__main__":
    job = json.loads(Path(sys.argv[1]).read_text())
    for layout in job["layouts"]:
        config, folder = configuration(layout), Path(job["folder"]) / layout["name"]
        about = {"layout": layout, "config": config, "folder": folder}
        if fork_ranks(world_size(config.trainer), partial(main, **about)):
            sys.exit(f"a rank has failed: {layout['name']}")
