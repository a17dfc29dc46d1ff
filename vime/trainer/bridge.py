"""Hugging Face checkpoints in and out of a Megatron model, over tensor-, expert- and pipeline-parallel ranks.

Loading reads only what this rank's parameters need. Exporting is a collective iterator: every rank walks it in lockstep and
gets every full tensor, one at a time, so the whole model is never in memory twice. A tied `lm_head` is not exported, unless the
given architecture is not tied: with an adapter of it or of the embedding the two differ.

With adapters the exported weights have them merged in. The adapters themselves come in and go out in the same way, under PEFT's
names (`adapters=True`).
"""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from vime.errors import CheckpointError
from vime.files.folders import put_in_place, sync, writing_place
from vime.model.architecture import Architecture, read_architecture
from vime.trainer import lora, names, value_head
from vime.trainer.model import Chunks
from vime.trainer.parallel import device
from vime.weights.export import write_adapter

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
            raise CheckpointError(f"{folder} holds no safetensors files; use a Hugging Face checkpoint folder or id")

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._file(name).get_tensor(name)

    def place(self, name: str, number: int) -> torch.Tensor:
        """One entry along the first dimension of a tensor, without reading the others."""
        return self._file(name).get_slice(name)[number]

    def _file(self, name: str) -> Any:
        if name not in self._files:
            raise CheckpointError(f"{self._folder} has no tensor {name!r}; is it a checkpoint of this architecture?")
        path = self._files[name]
        if path not in self._open:
            self._open[path] = safe_open(path, framework="pt")
        return self._open[path]


@torch.no_grad()
def load_hugging_face(model: Chunks, architecture: Architecture, folder: Path, *, adapters: bool = False) -> None:
    """Fills this rank's parameters, or those of its adapters, from a folder.

    Raises `CheckpointError` for a missing or misshapen tensor.
    """
    tensors = HuggingFaceFolder(folder)
    own_rank = parallel_state.get_expert_model_parallel_rank()
    for mapping, parameter in _mapped(model, expert_rank=own_rank, adapters=adapters):
        rank, size = (0, 1) if mapping.is_expert else (_tensor_rank(), _tensor_size())
        sources = mapping.names
        if sources == (names.HEAD,) and architecture.tie_word_embeddings:
            sources = (names.EMBEDDING,)
        read = [tensors[name] if mapping.place is None else tensors.place(name, mapping.place) for name in sources]
        full = names.fuse(mapping.layout, read, architecture)
        part = names.shard(mapping.layout, full, rank, size, architecture)
        if part.shape != parameter.shape:
            raise CheckpointError(f"{sources} in {folder} gives {tuple(part.shape)}, the model has {tuple(parameter.shape)}")
        parameter.copy_(part)


def export_hugging_face(
    model: Chunks, architecture: Architecture, *, adapters: bool = False
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields every Hugging Face tensor, whole, with its name and in a fixed order; a collective over all ranks of the model."""
    group: Any = parallel_state.get_pipeline_model_parallel_group()
    stages = parallel_state.get_pipeline_model_parallel_world_size()
    if stages == 1:
        yield from _export_stage(model, architecture, adapters=adapters)
        return
    own = parallel_state.get_pipeline_model_parallel_rank()
    for stage, plan in enumerate(_all_shapes(model, architecture, adapters=adapters)):
        source = dist.get_global_rank(group, stage)
        produced = _export_stage(model, architecture, adapters=adapters) if stage == own else None
        for name, shape in plan:
            if produced is not None:
                tensor = next(produced)[1].contiguous()
            else:
                tensor = torch.empty(shape, dtype=model.config.params_dtype, device=device())
            dist.broadcast(tensor, source, group=group)
            yield name, tensor


def exported_shapes(model: Chunks, architecture: Architecture) -> list[tuple[str, torch.dtype, tuple[int, ...]]]:
    """Name, dtype and shape of every tensor that `export_hugging_face` yields, in its order; a collective over pipeline stages.

    No weight is communicated.
    """
    plans = _all_shapes(model, architecture, adapters=False)
    return [(name, model.config.params_dtype, tuple(shape)) for plan in plans for name, shape in plan]


def _all_shapes(model: Chunks, architecture: Architecture, *, adapters: bool) -> list[list[tuple[str, torch.Size]]]:
    """Names and shapes by pipeline stage."""
    plans = [_stage_shapes(model, architecture, adapters=adapters)] * parallel_state.get_pipeline_model_parallel_world_size()
    if len(plans) > 1:
        dist.all_gather_object(plans, plans[0], group=parallel_state.get_pipeline_model_parallel_group())
    return plans


@torch.no_grad()
def _export_stage(model: Chunks, architecture: Architecture, *, adapters: bool) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors of this pipeline stage, gathered over its tensor-parallel ranks, experts over expert-parallel ones."""
    of_weights = lora.adapters(model)
    for mappings, parameters in _stage_entries(model, architecture, adapters=adapters):
        if mappings[0].place is not None:
            yield from _stacked(mappings, [_gathered(each.detach(), _expert_group()) for each in parameters], architecture)
            continue
        (parameter,) = parameters
        is_head = mappings[0].names == (names.HEAD,)
        own, layout, added = parameter.detach(), mappings[0].layout, of_weights.get(names.HEAD if is_head else id(parameter))
        if added is not None:
            own = added.merged(own)
        if mappings[0].is_expert:
            tensors = _gathered(own, _expert_group())
        elif layout is names.Layout.replicated:
            tensors = [own]
        else:
            shards = _gathered(own, parallel_state.get_tensor_model_parallel_group())
            tensors = [names.unshard(layout, shards, architecture)]
        for mapping, tensor in zip(mappings, tensors, strict=True):
            yield from zip(mapping.names, names.unfuse(layout, tensor, architecture))


def _stage_shapes(model: Chunks, architecture: Architecture, *, adapters: bool) -> list[tuple[str, torch.Size]]:
    """Names and shapes of the tensors that `_export_stage` yields, without communication."""
    shapes = []
    for mappings, parameters in _stage_entries(model, architecture, adapters=adapters):
        if mappings[0].place is not None:
            empty = torch.empty(parameters[0].shape, device="meta")
            ranks = [empty] * (len(mappings) // len(parameters))
            shapes += [(name, part.shape) for name, part in _stacked(mappings, [ranks] * len(parameters), architecture)]
            continue
        (parameter,) = parameters
        layout, size = mappings[0].layout, 1 if mappings[0].is_expert else _tensor_size()
        tensor = names.unshard(layout, [torch.empty(parameter.shape, device="meta")] * size, architecture)
        parts = names.unfuse(layout, tensor, architecture)
        shapes += [(name, part.shape) for mapping in mappings for name, part in zip(mapping.names, parts)]
    return shapes


def _stacked(
    mappings: list[names.Mapping], by_expert: list[list[torch.Tensor]], architecture: Architecture
) -> Iterator[tuple[str, torch.Tensor]]:
    """One tensor of all experts, with its name, from those of each local expert on all expert-parallel ranks."""
    layout, tensors = mappings[0].layout, [tensor for ranks in by_expert for tensor in ranks]
    placed = sorted(zip(mappings, tensors, strict=True), key=lambda pair: cast(int, pair[0].place))
    yield mappings[0].names[0], torch.stack([names.unfuse(layout, tensor, architecture)[0] for _, tensor in placed])


def _stage_entries(
    model: Chunks, architecture: Architecture, *, adapters: bool
) -> Iterator[tuple[list[names.Mapping], list[torch.nn.Parameter]]]:
    """Every exported parameter of this rank with its mapping; an expert with those of its peers on all expert-parallel ranks.

    Experts that a checkpoint has in one tensor come together, all that this rank has.
    """
    ranks = range(parallel_state.get_expert_model_parallel_world_size())
    stacks: dict[tuple[str, ...], tuple[list[names.Mapping], list[torch.nn.Parameter]]] = {}
    for entries in zip(*(_mapped(model, expert_rank=rank, adapters=adapters) for rank in ranks)):
        mapping, parameter = entries[0]
        if mapping.place is not None:
            mappings, parameters = stacks.setdefault(mapping.names, ([], []))
            mappings += [each for each, _ in entries]
            parameters.append(parameter)
        elif mapping.names != (names.HEAD,) or not architecture.tie_word_embeddings:
            yield [mapping for mapping, _ in entries] if mapping.is_expert else [mapping], [parameter]
    yield from stacks.values()
    last = model.parts[-1]
    if not adapters and not architecture.tie_word_embeddings and last.shares_embedding:
        yield [names.Mapping(names=(names.HEAD,), layout=names.Layout.rows)], [cast(Any, last.head_weight())]


def _mapped(model: Chunks, *, expert_rank: int, adapters: bool) -> Iterator[tuple[names.Mapping, torch.nn.Parameter]]:
    """This rank's parameters with their mappings, experts under the numbers that they have on this expert-parallel rank.

    These are the parameters of the model, or with `adapters` those of its adapters.
    """
    num_experts = (model.config.num_moe_experts or 0) // model.config.expert_model_parallel_size
    for part in model.parts:
        layer_offset = get_transformer_layer_offset(model.config, part.vp_stage)
        for name, parameter in part.named_parameters():
            if (names.ADAPTER.fullmatch(name) is not None) is not adapters or name.startswith(value_head.NAME):
                continue
            found = names.mapping(name, part.family, layer_offset=layer_offset, expert_offset=expert_rank * num_experts)
            yield found, parameter


def _expert_group() -> Any:
    return parallel_state.get_expert_model_parallel_group()


def _gathered(own: torch.Tensor, group: Any) -> list[torch.Tensor]:
    if group.size() == 1:
        return [own]
    tensors = [torch.empty_like(own, memory_format=torch.contiguous_format) for _ in range(group.size())]
    dist.all_gather(tensors, own.contiguous(), group=group)
    return tensors


def save_hugging_face(model: Chunks, architecture: Architecture, *, source: Path, folder: Path) -> None:
    """Writes a checkpoint folder with the configuration and tokenizer of `source`; a collective, rank 0 writes.

    The folder appears whole or not at all; an existing one is replaced. Raises `CheckpointError` on rank 0 if it
    cannot be written.
    """
    dtype = model.config.params_dtype
    tensors = export_hugging_face(model, architecture)
    _save(tensors, folder, lambda: write_folder(tensors, architecture, source=source, folder=folder, dtype=dtype))


def save_adapter(model: Chunks, architecture: Architecture, *, description: dict[str, Any], folder: Path) -> None:
    """Writes the adapters as a folder that PEFT and vLLM load, with `description` as its configuration; a collective.

    As with `save_hugging_face`, the folder appears whole or not at all.
    """
    tensors = export_hugging_face(model, architecture, adapters=True)
    _save(tensors, folder, lambda: write_adapter(tensors, folder=folder, description=description))


def _save(tensors: Iterator[Any], folder: Path, write: Callable[[], None]) -> None:
    """Rank 0 writes while all ranks walk the tensors. Raises `CheckpointError` there if it cannot be written."""
    if dist.get_rank() == 0:
        try:
            write()
        except (OSError, SafetensorError) as error:
            shutil.rmtree(writing_place(folder), ignore_errors=True)
            remedy = "make room, then tools/convert_checkpoint.py makes it from the last checkpoint"
            raise CheckpointError(f"{folder} cannot be written ({error}): {remedy}") from error
    else:
        for _ in tensors:
            pass
    dist.barrier()


def write_folder(
    tensors: Iterable[tuple[str, torch.Tensor]], architecture: Architecture, *, source: Path, folder: Path, dtype: torch.dtype
) -> None:
    """Writes tensors in files of bounded size with their index, and configuration and tokenizer of `source`.

    Rotary embeddings in the configuration are those of the architecture.
    """
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
    _copy_metadata(source, temporary, dtype, architecture)
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


def _copy_metadata(source: Path, folder: Path, dtype: torch.dtype, architecture: Architecture) -> None:
    for pattern in COPIED_FILES:
        for path in source.glob(pattern):
            if not path.name.endswith("index.json"):
                shutil.copyfile(path, folder / path.name)
    config = json.loads((source / "config.json").read_text())
    config.pop("torch_dtype", None)
    config["dtype"] = str(dtype).removeprefix("torch.")
    if architecture.rope_scaling != read_architecture(source).rope_scaling:
        config |= architecture.rope_fields()
        config.pop("rope_scaling", None)
    if architecture.tie_word_embeddings != read_architecture(source).tie_word_embeddings:
        config["tie_word_embeddings"] = architecture.tie_word_embeddings
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def _tensor_rank() -> int:
    return parallel_state.get_tensor_model_parallel_rank()


def _tensor_size() -> int:
    return parallel_state.get_tensor_model_parallel_world_size()
