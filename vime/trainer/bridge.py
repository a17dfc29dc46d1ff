"""Hugging Face checkpoints in and out of a Megatron model, over tensor- and pipeline-parallel ranks.

Loading reads only what this rank's parameters need. Exporting is a collective iterator: every rank walks it in lockstep and
gets every full tensor, one at a time, so the whole model is never in memory twice. A tied `lm_head` is not exported.
"""

import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from vime.errors import CheckpointError
from vime.folders import put_in_place, sync, writing_place
from vime.trainer import names
from vime.trainer.architecture import Architecture
from vime.trainer.model import PackedModel
from vime.trainer.parallel import device

SHARD_BYTES = 4 * 2**30
COPIED_FILES = ("*.json", "*.jinja", "*.txt", "*.model")


class HuggingFaceFolder:
    """Tensors of a checkpoint folder by name, read lazily. Raises `CheckpointError` where one is missing."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = {}
        self._open: dict[Path, Any] = {}
        for path in sorted(folder.glob("*.safetensors")):
            with safe_open(path, framework="pt") as file:
                self._files |= dict.fromkeys(file.keys(), path)
        if not self._files:
            raise CheckpointError(f"{folder} holds no safetensors files; give a Hugging Face checkpoint folder or id")

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self._files:
            raise CheckpointError(f"{self._folder} has no tensor {name!r}; is it a checkpoint of this architecture?")
        path = self._files[name]
        if path not in self._open:
            self._open[path] = safe_open(path, framework="pt")
        return self._open[path].get_tensor(name)


@torch.no_grad()
def load_hugging_face(model: PackedModel, architecture: Architecture, folder: Path) -> None:
    """Fills this rank's parameters from a checkpoint folder. Raises `CheckpointError` for a missing or misshapen tensor."""
    tensors = HuggingFaceFolder(folder)
    rank, size = _tensor_rank(), parallel_state.get_tensor_model_parallel_world_size()
    for name, parameter in model.named_parameters():
        mapping = names.mapping(name, layer_offset=_layer_offset(model))
        sources = mapping.names
        if sources == ("lm_head.weight",) and architecture.tie_word_embeddings:
            sources = ("model.embed_tokens.weight",)
        full = names.fuse(mapping.layout, [tensors[source] for source in sources], architecture)
        part = names.shard(mapping.layout, full, rank, size)
        if part.shape != parameter.shape:
            raise CheckpointError(f"{sources} in {folder} gives {tuple(part.shape)}, the model has {tuple(parameter.shape)}")
        parameter.copy_(part)


def export_hugging_face(model: PackedModel, architecture: Architecture) -> Iterator[tuple[str, torch.Tensor]]:
    """Every Hugging Face tensor by name, whole, in a fixed order; a collective over all ranks of the model."""
    group: Any = parallel_state.get_pipeline_model_parallel_group()
    stages = parallel_state.get_pipeline_model_parallel_world_size()
    if stages == 1:
        yield from _export_stage(model, architecture)
        return
    own = parallel_state.get_pipeline_model_parallel_rank()
    exported = [(name, tensor.shape) for name, tensor in _export_stage(model, architecture)]
    plans: list[list[tuple[str, torch.Size]]] = [[] for _ in range(stages)]
    dist.all_gather_object(plans, exported, group=group)
    for stage, plan in enumerate(plans):
        source = dist.get_global_rank(group, stage)
        produced = _export_stage(model, architecture) if stage == own else None
        for name, shape in plan:
            if produced is not None:
                tensor = next(produced)[1].contiguous()
            else:
                tensor = torch.empty(shape, dtype=model.config.params_dtype, device=device())
            dist.broadcast(tensor, source, group=group)
            yield name, tensor


@torch.no_grad()
def _export_stage(model: PackedModel, architecture: Architecture) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors of this pipeline stage, gathered over its tensor-parallel ranks."""
    group = parallel_state.get_tensor_model_parallel_group()
    size = parallel_state.get_tensor_model_parallel_world_size()
    for name, parameter in model.named_parameters():
        mapping = names.mapping(name, layer_offset=_layer_offset(model))
        if mapping.names == ("lm_head.weight",) and architecture.tie_word_embeddings:
            continue
        shards = [parameter.detach()]
        if size > 1 and mapping.layout is not names.Layout.replicated:
            own = parameter.detach().contiguous()
            shards = [torch.empty_like(own) for _ in range(size)]
            dist.all_gather(shards, own, group=group)
        full = names.unshard(mapping.layout, shards)
        yield from zip(mapping.names, names.unfuse(mapping.layout, full, architecture))


def save_hugging_face(model: PackedModel, architecture: Architecture, *, source: Path, folder: Path) -> None:
    """Writes a checkpoint folder with the configuration and tokenizer of `source`; a collective, rank 0 writes.

    The folder appears whole or not at all; one that is there already is replaced. Raises `CheckpointError` on rank 0 if it
    cannot be written.
    """
    if dist.get_rank() == 0:
        try:
            write_folder(export_hugging_face(model, architecture), source=source, folder=folder, dtype=model.config.params_dtype)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(writing_place(folder), ignore_errors=True)
            remedy = "make room, then tools/convert_checkpoint.py makes it from the last checkpoint"
            raise CheckpointError(f"{folder} cannot be written ({error}): {remedy}") from error
    else:
        for _ in export_hugging_face(model, architecture):
            pass
    dist.barrier()


def write_folder(tensors: Iterable[tuple[str, torch.Tensor]], *, source: Path, folder: Path, dtype: torch.dtype) -> None:
    """Writes tensors in files of bounded size with their index, and configuration and tokenizer of `source`."""
    temporary = writing_place(folder)
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    shards, current, size = [], {}, 0
    for name, tensor in tensors:
        if current and size + tensor.nbytes > SHARD_BYTES:
            shards.append(_write_shard(temporary, len(shards), current))
            current, size = {}, 0
        current[name] = tensor.detach().cpu().clone()
        size += tensor.nbytes
    shards.append(_write_shard(temporary, len(shards), current))
    _name_shards(temporary, shards)
    _copy_metadata(source, temporary, dtype)
    put_in_place(temporary, folder)


def _write_shard(folder: Path, number: int, tensors: dict[str, torch.Tensor]) -> tuple[Path, dict[str, int]]:
    path = folder / f"shard-{number}.safetensors"
    save_file(tensors, path, metadata={"format": "pt"})
    sync(path)
    return path, {name: tensor.nbytes for name, tensor in tensors.items()}


def _name_shards(folder: Path, shards: list[tuple[Path, dict[str, int]]]) -> None:
    """Names one shard `model.safetensors`, several `model-0000i-of-0000n.safetensors` with an index."""
    if len(shards) == 1:
        shards[0][0].rename(folder / "model.safetensors")
        return
    weight_map: dict[str, str] = {}
    for number, (path, sizes) in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        path.rename(folder / name)
        weight_map |= dict.fromkeys(sizes, name)
    total = sum(sum(sizes.values()) for _, sizes in shards)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")


def _copy_metadata(source: Path, folder: Path, dtype: torch.dtype) -> None:
    for pattern in COPIED_FILES:
        for path in source.glob(pattern):
            if not path.name.endswith("index.json"):
                shutil.copyfile(path, folder / path.name)
    config = json.loads((source / "config.json").read_text())
    config.pop("torch_dtype", None)
    config["dtype"] = str(dtype).removeprefix("torch.")
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def _tensor_rank() -> int:
    return parallel_state.get_tensor_model_parallel_rank()


def _layer_offset(model: PackedModel) -> int:
    return get_transformer_layer_offset(model.config)
