"""Exact checkpoints of the trainer: after loading, weights, optimizer and the next step are bitwise those of the saved run.

Each rank writes one file with its parameters, the parameters its optimizer owns (float32 masters, or its shard of them), the
optimizer's moments and steps, and its random states. `manifest.json` holds the layout of ranks and a checksum per file. The
folder is written beside its place, synced to disk and renamed, so it is whole or not there.
"""

import hashlib
import json
import os
import random
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from megatron.core.optimizer.optimizer import MegatronOptimizer

from vime.config import TrainerConfig
from vime.errors import CheckpointError
from vime.trainer.architecture import Architecture
from vime.trainer.model import Chunks

MANIFEST = "manifest.json"
FORMAT = 1


def save(folder: Path, model: Chunks, optimizer: MegatronOptimizer, layout: dict[str, Any]) -> None:
    """Writes the checkpoint; a collective. One that is there already is replaced. All ranks see one file system."""
    temporary = folder.with_name(f".writing_{folder.name}")
    rank = dist.get_rank()
    if rank == 0:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
    dist.barrier()
    path = temporary / f"rank_{rank:05d}.pt"
    with path.open("wb") as file:
        torch.save(_state(model, optimizer), file)
        file.flush()
        os.fsync(file.fileno())
    entries: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(entries, {"file": path.name, "bytes": path.stat().st_size, "blake2b": _checksum(path)})
    if rank == 0:
        manifest = {"format": FORMAT, "layout": layout, "ranks": entries}
        with (temporary / MANIFEST).open("w") as file:
            json.dump(manifest, file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)
        _sync_directory(folder.parent)
    dist.barrier()


def load(folder: Path, model: Chunks, optimizer: MegatronOptimizer, layout: dict[str, Any]) -> None:
    """Restores what `save` wrote. Raises `CheckpointError` if it is missing, damaged, or of another model or layout."""
    manifest = read_manifest(folder)
    differing = [key for key in layout if manifest["layout"].get(key) != layout[key]]
    if differing:
        saved = {key: manifest["layout"].get(key) for key in differing}
        raise CheckpointError(f"{folder} was saved with {saved}, this run has { {key: layout[key] for key in differing} }")
    entry = manifest["ranks"][dist.get_rank()]
    path = folder / entry["file"]
    if not path.exists() or path.stat().st_size != entry["bytes"] or _checksum(path) != entry["blake2b"]:
        raise CheckpointError(f"{path} is missing or damaged (its checksum differs from the manifest); use another checkpoint")
    _restore(torch.load(path, map_location="cpu", weights_only=False), model, optimizer)
    dist.barrier()


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a checkpoint. Raises `CheckpointError` if there is none that can be read."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{folder} is not a complete trainer checkpoint ({error})") from error
    if manifest.get("format") != FORMAT:
        raise CheckpointError(f"{folder} has format {manifest.get('format')}, this version reads {FORMAT}")
    return manifest


def layout_of(architecture: Architecture, trainer: TrainerConfig) -> dict[str, Any]:
    """What a checkpoint must agree in with the run that loads it."""
    shape = asdict(architecture) | {"family": architecture.family.value}
    return {
        "architecture": shape,
        "tensor_parallel_size": trainer.tensor_parallel_size,
        "pipeline_parallel_size": trainer.pipeline_parallel_size,
        "virtual_pipeline_parallel_size": trainer.virtual_pipeline_parallel_size,
        "data_parallel_size": trainer.data_parallel_size,
        "context_parallel_size": trainer.context_parallel_size,
        "expert_parallel_size": trainer.expert_parallel_size,
        "precision": trainer.precision.value,
    }


def _state(model: Chunks, optimizer: MegatronOptimizer) -> dict[str, Any]:
    return {
        "parameters": {name: parameter.detach() for name, parameter in model.named_parameters()},
        "optimizers": [{"owned": _owned(inner), "state": inner.state_dict()} for inner in _inner_optimizers(optimizer)],
        "random": {
            "python": random.getstate(),
            "numpy": np.random.get_state(),
            "torch": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
        },
    }


@torch.no_grad()
def _restore(state: dict[str, Any], model: Chunks, optimizer: MegatronOptimizer) -> None:
    for name, parameter in model.named_parameters():
        parameter.copy_(state["parameters"][name])
    for inner, saved in zip(_inner_optimizers(optimizer), state["optimizers"], strict=True):
        for own, value in zip(_owned(inner), saved["owned"], strict=True):
            own.copy_(value)
        inner.load_state_dict(saved["state"])
    random.setstate(state["random"]["python"])
    np.random.set_state(state["random"]["numpy"])
    torch.set_rng_state(state["random"]["torch"])
    if state["random"]["cuda"] is not None:
        torch.cuda.set_rng_state(state["random"]["cuda"])


def _inner_optimizers(optimizer: MegatronOptimizer) -> list[torch.optim.Optimizer]:
    """The PyTorch optimizers inside Megatron's chain, whose parameters are what Adam updates on this rank."""
    chain = getattr(optimizer, "chained_optimizers", [optimizer])
    return [link.optimizer for link in chain if link.optimizer is not None]


def _owned(inner: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter.detach() for group in inner.param_groups for parameter in group["params"]]


def _checksum(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(2**24):
            digest.update(block)
    return digest.hexdigest()


def _sync_directory(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
