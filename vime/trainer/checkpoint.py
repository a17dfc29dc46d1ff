"""Exact checkpoints of the trainer in Megatron's distributed format, which load under any layout of ranks.

With adapters only these are saved; the other weights are those of the base model, whose digest is in the manifest.
The files hold each float32 master weight and its two moments as one tensor, cut into the pieces that the ranks wrote; a rank that
loads reads only the parts that it needs. `begin` copies the state into memory and returns; a thread of each rank writes it while
training goes on, and `PendingSave.finish` completes the folder (`vime.trainer.pending_save`).
"""

import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.core import CheckpointingException
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensorFactory
from megatron.core.dist_checkpointing.utils import extract_sharded_tensors_and_factories
from megatron.core.optimizer.optimizer import MegatronOptimizer
from torch.distributed.checkpoint.api import CheckpointException

from vime.errors import CheckpointError
from vime.files.folders import writing_place
from vime.trainer import manifest, pending_save
from vime.trainer.model import Chunks
from vime.trainer.optimizer_state import KINDS, MASTER, ParameterPart, num_steps, parts, set_num_steps
from vime.trainer.pending_save import PendingSave, free_space, gather

Averages = Mapping[str, Sequence[torch.Tensor]]
"""Running averages of the weights by name, float32, in the order of the model's parameters."""


def begin(
    folder: Path, model: Chunks, optimizer: MegatronOptimizer, run: dict[str, Any], *, averages: Averages = MappingProxyType({})
) -> PendingSave:
    """Copies the state and starts to write it beside `folder`; a collective. All ranks see one file system.

    Raises `CheckpointError` on every rank if the disk has no room for it.
    """
    temporary = writing_place(folder)
    state = _state(model, optimizer, averages)
    num_bytes = sum(gather(sum(entry.data.nbytes for entry in nested_values(state["tensors"]))))
    problem = gather(_make_room(temporary, num_bytes) if dist.get_rank() == 0 else None)[0]
    if problem:
        raise CheckpointError(f"{folder} cannot be written: {problem}; {free_space(folder)}")
    return pending_save.start(folder, state, run)


def load(
    folder: Path,
    model: Chunks,
    optimizer: MegatronOptimizer,
    run: dict[str, Any],
    *,
    averages: Averages = MappingProxyType({}),
    with_moments: bool = True,
) -> None:
    """Restores a checkpoint under this run's layout; a collective.

    Weights, moments and step are bitwise those that were saved; so are the random states under the same layout, under
    another all ranks get those of the first. Without moments, these and the step stay as they are. Raises `CheckpointError`
    on every rank if it is incomplete, damaged, or of another model.
    """
    saved = manifest.read(folder)
    manifest.check_same_model(folder, saved, run)
    _check_files(folder, saved["files"])
    rank = dist.get_rank() if saved["layout"] == run["layout"] else 0
    owned, kinds = parts(optimizer), KINDS if with_moments else (MASTER,)
    state = {"tensors": _wanted(model, owned, kinds), "random": ShardedObject("random", None, (saved["num_ranks"],), (rank,))}
    places = dict(_of_averages(model, averages))
    for key, (entry, kind, kept) in places.items():
        state["tensors"][key] = _entry(entry, kind, torch.empty_like(kept), replica_id=entry.replica_id)
    found = _read(folder, state)
    for key, (_, _, kept) in places.items():
        kept.copy_(found["tensors"].pop(key))
    _restore(found, _sharded(model, owned)[1], owned, kinds)
    if with_moments:
        set_num_steps(optimizer, found["num_steps"])
    dist.barrier()


@torch.no_grad()
def load_weights(folder: Path, model: Chunks) -> None:
    """Fills the trained weights of a model without an optimizer. Raises `CheckpointError`.

    Files are not checked (`vime.trainer.manifest.damage`).
    """
    entries, _ = extract_sharded_tensors_and_factories(model.sharded_state_dict())
    targets = [entry for entry in nested_values(entries) if not _is_frozen(entry.data)]
    wanted = {
        str(index): _entry(entry, MASTER, torch.empty(entry.data.shape, dtype=torch.float32), replica_id=entry.replica_id)
        for index, entry in enumerate(targets)
    }
    found = _read(folder, {"tensors": wanted})["tensors"]
    for index, entry in enumerate(targets):
        entry.data.copy_(found[str(index)])


def _check_files(folder: Path, files: dict[str, Any]) -> None:
    """Checks all files, divided over the ranks. Raises `CheckpointError` on every rank, naming each damaged file."""
    own = sorted(files)[dist.get_rank() :: dist.get_world_size()]
    problems = [line for lines in gather(manifest.damage(folder, {name: files[name] for name in own})) for line in lines]
    if problems:
        raise CheckpointError(f"{'; '.join(problems)}: {manifest.ADVICE}")


def _read(folder: Path, state: dict[str, Any]) -> dict[str, Any]:
    try:
        found = dist_checkpointing.load(state, str(folder), validate_access_integrity=False)
    except (CheckpointingException, CheckpointException) as error:
        raise CheckpointError(f"{folder} lacks what this model needs ({error}): {manifest.ADVICE}") from error
    assert not isinstance(found, tuple)
    return found


def _state(model: Chunks, optimizer: MegatronOptimizer, averages: Averages = MappingProxyType({})) -> dict[str, Any]:
    """Copies the part of the state that this rank writes; a piece that several ranks hold is written by one of them."""
    owned = parts(optimizer)
    sharded, buffers = _sharded(model, owned)
    tensors: dict[str, Any] = {}
    for index, part in enumerate(owned):
        entry = sharded[index]
        receiver = 0 if part.sharers is None else index % dist.get_world_size(part.sharers)
        if any(entry.replica_id[:2] if part.sharers is not None else entry.replica_id):
            continue  # written by other ranks of the tensor- or pipeline-parallel group
        for kind in KINDS:
            whole = part.whole(kind, receiver=receiver)
            if whole is not None:
                copied = whole.to("cpu", copy=part.sharers is None)
                tensors[f"{kind}.{index}"] = _entry(entry, kind, copied, replica_id=(0, 0, 0))
    for key, entry in buffers.items():
        tensors[key] = replace(entry, data=entry.data.detach().to("cpu", copy=True))
    for key, (entry, kind, kept) in _of_averages(model, averages):
        if not any(entry.replica_id):
            tensors[key] = _entry(entry, kind, kept.clone(), replica_id=(0, 0, 0))
    randomness = ShardedObject("random", _random_state(), (dist.get_world_size(),), (dist.get_rank(),))
    return {"tensors": tensors, "random": randomness, "num_steps": num_steps(optimizer)}


def _of_averages(model: Chunks, averages: Averages) -> Iterator[tuple[str, tuple[Any, str, torch.Tensor]]]:
    """A key of this file, and the place in the whole model, the kind and the tensor of each parameter's averages."""
    entries, _ = extract_sharded_tensors_and_factories(model.sharded_state_dict())
    by_tensor = {id(entry.data): entry for entry in nested_values(entries)}
    for kind, tensors in averages.items():
        for index, (parameter, kept) in enumerate(zip(model.trained, tensors, strict=True)):
            if id(parameter) in by_tensor:
                yield f"{kind}.{index}", (by_tensor[id(parameter)], kind, kept)


def _wanted(model: Chunks, owned: list[ParameterPart], kinds: Sequence[str]) -> dict[str, Any]:
    """Empty tensors to load into: every weight of this rank, and further kinds of those that its optimizer owns a part of."""
    sharded, buffers = _sharded(model, owned)
    tensors: dict[str, Any] = {name: replace(entry, data=torch.empty_like(entry.data)) for name, entry in buffers.items()}
    for index, part in enumerate(owned):
        for kind in kinds if part.end > part.start else (MASTER,):
            empty = torch.empty(part.parameter.shape, dtype=torch.float32)
            tensors[f"{kind}.{index}"] = _entry(sharded[index], kind, empty, replica_id=sharded[index].replica_id)
    return tensors


@torch.no_grad()
def _restore(found: dict[str, Any], buffers: dict[str, Any], owned: list[ParameterPart], kinds: Sequence[str]) -> None:
    tensors = found["tensors"]
    for name, entry in buffers.items():
        entry.data.copy_(tensors[name])
    for index, part in enumerate(owned):
        part.parameter.copy_(tensors[f"{MASTER}.{index}"])
        for kind in kinds if part.end > part.start else ():
            part.fill(kind, tensors.pop(f"{kind}.{index}"))
    _set_random_state(found["random"])


def _sharded(model: Chunks, owned: list[ParameterPart]) -> tuple[list[Any], dict[str, Any]]:
    """Megatron's description of each parameter's place in the whole model, and of buffers that belong to it."""
    entries, _ = extract_sharded_tensors_and_factories(model.sharded_state_dict())
    by_tensor = {id(entry.data): entry for entry in nested_values(entries)}
    sharded = [by_tensor.pop(id(part.parameter)) for part in owned]
    others = [entry for entry in by_tensor.values() if not _is_frozen(entry.data)]
    return sharded, {f"buffer.{index}": entry for index, entry in enumerate(others)}


def _is_frozen(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, torch.nn.Parameter) and not tensor.requires_grad


def _entry(entry: Any, kind: str, data: torch.Tensor, *, replica_id: Any) -> Any:
    """The entry of a tensor of a parameter's shape: the master under the parameter's name, moments as Megatron has them."""
    key = entry.key if kind == MASTER else f"optimizer.state.{kind}.{entry.key}"
    if isinstance(entry, ShardedTensorFactory):
        return replace(entry, key=key, data=data, replica_id=replica_id)
    return replace(entry, key=key, data=data, dtype=data.dtype, replica_id=replica_id)


def _make_room(temporary: Path, num_bytes: int) -> str | None:
    """Creates the folder; returns why `num_bytes` cannot be written into it, or None if they can."""
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        free = shutil.disk_usage(temporary).free
    except OSError as error:
        return repr(error)
    return f"it needs {num_bytes / 2**20:.0f} MiB" if free < num_bytes else None


def _random_state() -> dict[str, Any]:
    generator, keys, *position = cast(Any, np.random.get_state())
    return {
        "python": random.getstate(),
        "numpy": (generator, keys.tolist(), *position),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    }


def _set_random_state(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
