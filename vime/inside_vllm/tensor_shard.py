"""The layer that a tensor of the payload belongs to, and the part of it that this worker holds.

vLLM fuses tensors (q, k and v into one layer, gate and up likewise, all experts into one) and shares them out over
tensor-parallel ranks. The arithmetic here is written apart from vLLM's loaders, so that a mistake of either shows.
"""

import enum
import re
from dataclasses import dataclass
from typing import Any

import torch

INNER = "model."
QKV = "qkv_proj"
EXPERT = re.compile(r"(?P<layer>.*\.experts)\.(?P<number>\d+)\.(?P<part>gate_proj|up_proj|down_proj)\.(?P<parameter>weight|bias)")


class Kind(enum.Enum):
    """The way in which a layer shows the tensor that it computes with."""

    linear = "linear"
    """A linear layer, whose output on a one-hot input is a column of the weight."""
    rows = "rows"
    """An embedding gives rows."""
    values = "values"
    """A norm or a bias computes with its named parameter itself."""
    expert = "expert"
    """The experts' output, when a token is sent to one of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorShard:
    """Part of a payload's tensor, and where it lies in this worker's model.

    Example: `TensorShard(module=qkv_proj, kind=Kind.linear, rows=slice(0, 512), columns=slice(0, 896), offset=1024)` is k_proj:
    its rows 0 to 511 are the layer's outputs from 1024 on. `part` and `number` are an expert's: which of its three weights,
    and which expert of this worker.
    """

    module: Any
    kind: Kind
    rows: slice
    columns: slice
    offset: int = 0
    parameter: str = "weight"
    part: str = ""
    number: int = 0


def find_shard(model: Any, name: str, shape: torch.Size) -> TensorShard | None:
    """The place of the tensor `name`; None if this worker holds nothing of it, or vLLM's layer is of an unknown kind."""
    if expert := EXPERT.fullmatch(name):
        return _expert(model, expert, shape)
    mapped = _mapped(model, name)
    if mapped is None:
        return None
    (path, _, parameter), part = mapped[0].rpartition("."), mapped[1]
    try:
        module = model.get_submodule(path)
    except AttributeError:
        fused = _fused_queries(model, path)
        if fused is None:
            return None
        module, part = fused
    return _of_layer(module, parameter, part, shape)


def _fused_queries(model: Any, path: str) -> tuple[Any, str] | None:
    """The layer of queries, keys and values with the part that this is, of a model whose names do not say it."""
    before, _, name = path.rpartition(".")
    if name not in getattr(model, "packed_modules_mapping", {}).get(QKV, ()):
        return None
    try:
        return model.get_submodule(f"{before}.{QKV}"), name[0]
    except AttributeError:
        return None


def _mapped(model: Any, name: str) -> tuple[str, Any] | None:
    """The name in vLLM's model, and the part of a fused layer; None if vLLM drops the tensor.

    Some models say which layers are fused at the model that is inside of them.
    """
    mapped: Any = model.hf_to_vllm_mapper._map_name_with_shard(name) if hasattr(model, "hf_to_vllm_mapper") else (name, None)
    inner: Any = getattr(getattr(model, "model", None), "hf_to_vllm_mapper", None)
    if mapped is None or mapped[1] is not None or inner is None or not mapped[0].startswith(INNER):
        return mapped
    within = inner._map_name_with_shard(mapped[0].removeprefix(INNER))
    return within and (INNER + within[0], within[1])


def _of_layer(module: Any, parameter: str, part: Any, shape: torch.Size) -> TensorShard | None:
    from vllm.model_executor.layers.linear import LinearBase
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

    everything = slice(0, shape[1]) if len(shape) > 1 else slice(0, 1)
    if isinstance(module, VocabParallelEmbedding):
        held = module.shard_indices
        rows = slice(held.org_vocab_start_index, min(held.org_vocab_end_index, shape[0]))
        if parameter == "bias":
            return TensorShard(module=module, kind=Kind.values, rows=rows, columns=everything, parameter=parameter)
        kind = Kind.linear if isinstance(module, ParallelLMHead) else Kind.rows
        return TensorShard(module=module, kind=kind, rows=rows, columns=everything)
    if len(shape) == 3:  # the filters of a convolution, whose layer does not multiply; a processor may have them packed
        return _whole(module, parameter, shape)
    if isinstance(part, tuple) and module.tp_size > 1:
        return None  # several parts of one tensor, of each of which this worker holds some rows
    if isinstance(module, LinearBase):
        rows, columns, offset = _slices(module, part, shape)
        kind = Kind.linear if parameter == "weight" else Kind.values
        return TensorShard(module=module, kind=kind, rows=rows, columns=columns, offset=offset, parameter=parameter)
    return _whole(module, parameter, shape)


def _whole(module: Any, parameter: str, shape: torch.Size) -> TensorShard | None:
    """A parameter that this worker holds as it was sent; None if it is cut or packed."""
    loaded = getattr(module, parameter, None)
    if not isinstance(loaded, torch.Tensor) or loaded.shape != shape or hasattr(module, "_cpu_unpacked_conv_weight"):
        return None
    columns = slice(0, shape[1]) if len(shape) > 1 else slice(0, 1)
    return TensorShard(module=module, kind=Kind.values, rows=slice(0, shape[0]), columns=columns, parameter=parameter)


def _slices(module: Any, part: Any, shape: torch.Size) -> tuple[slice, slice, int]:
    """Rows and columns of the payload's tensor that a linear layer of this worker holds, and the first of its outputs."""
    from vllm.model_executor.layers.linear import MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear

    rank, rows, columns = module.tp_rank, slice(0, shape[0]), slice(0, shape[1]) if len(shape) > 1 else slice(0, 1)
    if isinstance(module, QKVParallelLinear) and part in ("q", "k", "v"):
        sizes = {
            "q": module.num_heads * module.head_size,
            "k": module.num_kv_heads * module.head_size,
            "v": module.num_kv_heads * module.v_head_size,
        }
        offset = {"q": 0, "k": sizes["q"], "v": sizes["q"] + sizes["k"]}[part]
        number = rank if part == "q" else rank // module.num_kv_head_replicas
        return slice(number * sizes[part], (number + 1) * sizes[part]), columns, offset
    if isinstance(module, MergedColumnParallelLinear) and isinstance(part, tuple):
        return rows, columns, sum(module.output_partition_sizes[: part[0]])
    if isinstance(module, MergedColumnParallelLinear) and isinstance(part, int):
        sizes_of_parts = module.output_partition_sizes
        size = sizes_of_parts[part]
        return slice(rank * size, (rank + 1) * size), columns, sum(sizes_of_parts[:part])
    if isinstance(module, RowParallelLinear):
        size = module.input_size_per_partition
        return rows, slice(rank * size, (rank + 1) * size) if len(shape) > 1 else columns, 0
    size = sum(module.output_partition_sizes)
    return (rows if size == shape[0] else slice(rank * size, (rank + 1) * size)), columns, 0


def _expert(model: Any, match: "re.Match[str]", shape: torch.Size) -> TensorShard | None:
    from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts

    layer = model.get_submodule(match["layer"])
    module = next((found for found in layer.modules() if isinstance(found, RoutedExperts)), None)
    number = int(match["number"])
    if module is None:
        return None
    if module.expert_map is not None and int(module.expert_map[number]) < 0:
        return None  # another worker's
    size, rank = module.moe_config.intermediate_size_per_partition, module.moe_config.moe_parallel_config.tp_rank
    size = min(getattr(module.moe_config, "intermediate_size_per_partition_unpadded", None) or size, size)
    own, all_rows = slice(rank * size, (rank + 1) * size), slice(0, shape[0])
    all_columns = slice(0, shape[1]) if len(shape) > 1 else slice(0, 1)
    rows, columns = (all_rows, own) if match["part"] == "down_proj" else (own, all_columns)
    return TensorShard(
        module=module,
        kind=Kind.expert,
        rows=rows,
        columns=columns,
        parameter=match["parameter"],
        part=match["part"],
        number=number,
    )
