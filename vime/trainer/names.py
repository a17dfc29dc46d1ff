"""Names and layouts: which Hugging Face tensors one Megatron parameter holds, and how it is cut over tensor-parallel ranks.

Megatron fuses queries, keys and values into one matrix, interleaved by group (all queries of a group, its key, its value),
and gate and up projections into another; Hugging Face keeps them apart. Everything here is about full tensors or their
shards, without communication.

An adapter's matrices have the names that PEFT gives them: `A` reads what the adapted matrix reads, `B` writes what it writes, so
one of the two is cut as the adapted matrix is, and the other is whole on every rank.
"""

import re
from dataclasses import dataclass, replace
from enum import Enum

import torch

from vime.model.architecture import Architecture
from vime.model.families import ModelFamily


class Layout(Enum):
    """The way in which a parameter is assembled from Hugging Face tensors and split over tensor-parallel ranks."""

    replicated = "replicated"
    rows = "rows"
    """Split along dimension 0 (column-parallel layers and the vocabulary)."""
    columns = "columns"
    """Split along dimension 1 (row-parallel layers)."""
    qkv = "qkv"
    gate_up = "gate_up"
    gate_up_in_turn = "gate_up_in_turn"
    """Gate and up projection row by row in turn, of an expert in a tensor of all, which has inputs before outputs."""
    transposed = "transposed"
    """A matrix of an expert in a tensor of all, which has inputs before outputs."""
    delta_inputs = "delta_inputs"
    """All that a layer of linear attention computes of its input (`LinearAttentionConfig.input_parts`)."""
    delta_qkv = "delta_qkv"
    """Its queries, keys and values one after another, each cut by itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mapping:
    """One Megatron parameter: Hugging Face names in the order of the fused tensor, and its layout."""

    names: tuple[str, ...]
    layout: Layout
    is_expert: bool = False
    """Whole on its expert-parallel rank, not cut over tensor-parallel ones."""
    place: int | None = None
    """Number of the expert in a tensor of all experts of the layer; None for a tensor of its own."""


EXPERTS = ".experts."
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
LOOKUP = "lora_embedding_"
"""Beginning of PEFT's names of the two matrices of an embedding's adapter, in its module."""
ATTENTION, MLP, LINEAR = (f"model.layers.{{0}}.{part}." for part in ("self_attn", "mlp", "linear_attn"))
_TABLE: list[tuple[str, tuple[str, ...], Layout]] = [
    (r"embedding\.word_embeddings\.weight", (EMBEDDING,), Layout.rows),
    (r"decoder\.final_layernorm\.weight", ("model.norm.weight",), Layout.replicated),
    (r"output_layer\.weight", (HEAD,), Layout.rows),
    (
        r"decoder\.layers\.(\d+)\.self_attention\.linear_qkv\.(weight|bias)",
        tuple(ATTENTION + f"{part}_proj.{{1}}" for part in "qkv"),
        Layout.qkv,
    ),
    (r"decoder\.layers\.(\d+)\.self_attention\.core_attention\.softmax_offset", (ATTENTION + "sinks",), Layout.rows),
    (r"decoder\.layers\.(\d+)\.self_attention\.linear_proj\.weight", (ATTENTION + "o_proj.weight",), Layout.columns),
    (r"decoder\.layers\.(\d+)\.self_attention\.([qk])_layernorm\.weight", (ATTENTION + "{1}_norm.weight",), Layout.replicated),
    (
        r"decoder\.layers\.(\d+)\.self_attention\.in_proj\.weight",
        tuple(LINEAR + f"in_proj_{part}.weight" for part in ("qkv", "z", "b", "a")),
        Layout.delta_inputs,
    ),
    (r"decoder\.layers\.(\d+)\.self_attention\.conv1d\.weight", (LINEAR + "conv1d.weight",), Layout.delta_qkv),
    (r"decoder\.layers\.(\d+)\.self_attention\.(A_log|dt_bias)", (LINEAR + "{1}",), Layout.rows),
    (r"decoder\.layers\.(\d+)\.self_attention\.out_norm\.weight", (LINEAR + "norm.weight",), Layout.replicated),
    (r"decoder\.layers\.(\d+)\.self_attention\.out_proj\.weight", (LINEAR + "out_proj.weight",), Layout.columns),
    (
        r"decoder\.layers\.(\d+)\.(?:input_layernorm\.weight|self_attention\.linear_qkv\.layer_norm_weight)",
        ("model.layers.{0}.input_layernorm.weight",),
        Layout.replicated,
    ),
    (
        r"decoder\.layers\.(\d+)\.(?:pre_mlp_layernorm\.weight|mlp\.linear_fc1\.layer_norm_weight)",
        ("model.layers.{0}.post_attention_layernorm.weight",),
        Layout.replicated,
    ),
    (
        r"decoder\.layers\.(\d+)\.mlp\.linear_fc1\.weight",
        (MLP + "gate_proj.weight", MLP + "up_proj.weight"),
        Layout.gate_up,
    ),
    (r"decoder\.layers\.(\d+)\.mlp\.linear_fc2\.weight", (MLP + "down_proj.weight",), Layout.columns),
    (r"decoder\.layers\.(\d+)\.mlp\.router\.weight", (MLP + "gate.weight",), Layout.replicated),
    (
        r"decoder\.layers\.(\d+)\.mlp\.experts\.(?:local_experts\.)?(?:(\d+)\.linear_fc1\.weight|linear_fc1\.weight(\d+))",
        (MLP + "experts.{1}.gate_proj.weight", MLP + "experts.{1}.up_proj.weight"),
        Layout.gate_up,
    ),
    (
        r"decoder\.layers\.(\d+)\.mlp\.experts\.(?:local_experts\.)?(?:(\d+)\.linear_fc2\.weight|linear_fc2\.weight(\d+))",
        (MLP + "experts.{1}.down_proj.weight",),
        Layout.columns,
    ),
]
ADAPTER = re.compile(r"(.+)\.lora\.([AB])\.(\w+)")
"""The name of an adapter's matrix: the adapted Megatron module, the matrix, and the adapted Hugging Face matrix."""
_OF_LAYER = re.compile(r"decoder\.layers\.(\d+)\.(.+)")
_STACKED = re.compile(r"mlp\.experts\.local_experts\.(\d+)\.linear_fc([12])\.(weight|bias)")
_PATTERNS = [(re.compile(pattern), names, layout) for pattern, names, layout in _TABLE]


def mapping(parameter: str, family: ModelFamily, *, layer_offset: int, expert_offset: int = 0) -> Mapping:
    """The mapping of a Megatron parameter by its name; the offsets are the first layer and expert that this rank holds."""
    if (adapter := ADAPTER.fullmatch(parameter)) is not None:
        return _of_adapter(adapter, mapping(f"{adapter[1]}.weight", family, layer_offset=layer_offset))
    of_layer = _OF_LAYER.fullmatch(parameter)
    if of_layer is not None and of_layer[2] in family.tensors:
        name = f"model.layers.{int(of_layer[1]) + layer_offset}.{family.tensors[of_layer[2]]}"
        return Mapping(names=(name,), layout=Layout.replicated)
    if of_layer is not None and family.stacks_experts and (expert := _STACKED.fullmatch(of_layer[2])) is not None:
        is_first, is_bias = expert[2] == "1", expert[3] == "bias"
        name = f"{MLP}experts.{'gate_up_proj' if is_first else 'down_proj'}{'_bias' if is_bias else ''}"
        return Mapping(
            names=(name.format(int(of_layer[1]) + layer_offset),),
            layout=Layout.gate_up_in_turn if is_first else Layout.transposed,
            is_expert=True,
            place=int(expert[1]) + expert_offset,
        )
    for pattern, names, layout in _PATTERNS:
        match = pattern.fullmatch(parameter)
        if match:
            groups = [group for group in match.groups() if group is not None]
            if groups:
                groups[0] = str(int(groups[0]) + layer_offset)
            is_expert = EXPERTS in names[0]
            if is_expert:
                groups[1] = str(int(groups[1]) + expert_offset)
            return Mapping(names=tuple(name.format(*groups) for name in names), layout=layout, is_expert=is_expert)
    raise KeyError(f"no Hugging Face name for the Megatron parameter {parameter!r}")


def is_drawn(parameter: str) -> bool:
    """True for the matrix of an adapter that is random at first, by its name: A, but B of the embedding's, as in PEFT."""
    adapter = ADAPTER.fullmatch(parameter)
    return adapter is not None and adapter[2] == ("B" if EMBEDDING.startswith(f"model.{adapter[3]}.") else "A")


def _of_adapter(adapter: re.Match[str], adapted: Mapping) -> Mapping:
    """The mapping of one matrix of an adapter."""
    (name,) = (name for name in adapted.names if f".{name}".endswith(f".{adapter[3]}.weight"))
    is_first, is_lookup = adapter[2] == "A", name == EMBEDDING
    is_cut_by_inputs = adapted.layout is Layout.columns or is_lookup
    cut = Layout.columns if is_first else Layout.rows
    layout = cut if is_first is is_cut_by_inputs else Layout.replicated
    own = f"{LOOKUP}{adapter[2]}" if is_lookup else f"lora_{adapter[2]}.weight"
    return replace(adapted, names=(f"base_model.model.{name.removesuffix('weight')}{own}",), layout=layout)


def fuse(layout: Layout, parts: list[torch.Tensor], architecture: Architecture) -> torch.Tensor:
    """The full Megatron tensor of full Hugging Face tensors."""
    if layout in (Layout.gate_up, Layout.delta_inputs):
        return torch.cat(parts)
    if layout is Layout.gate_up_in_turn:
        return torch.cat([parts[0].t()[0::2], parts[0].t()[1::2]])
    if layout is Layout.transposed:
        return parts[0].t()
    if layout is not Layout.qkv:
        return parts[0]
    groups, width = architecture.num_key_value_heads, architecture.head_dim
    heads, kinds = architecture.num_attention_heads // groups, 1 + architecture.of.gates_attention
    rest = parts[0].shape[1:]
    # Hugging Face has each head's query and gate together, Megatron all queries of a group, then all its gates
    query = parts[0].reshape(groups, heads, kinds, width, *rest).transpose(1, 2).reshape(groups, kinds * heads * width, *rest)
    key, value = (part.reshape(groups, width, *rest) for part in parts[1:])
    return torch.cat([query, key, value], dim=1).reshape(-1, *rest)


def unfuse(layout: Layout, full: torch.Tensor, architecture: Architecture) -> list[torch.Tensor]:
    """Inverse of `fuse`."""
    if layout is Layout.gate_up:
        return list(full.chunk(2))
    if layout is Layout.gate_up_in_turn:
        return [torch.stack(full.chunk(2), dim=1).flatten(0, 1).t()]
    if layout is Layout.transposed:
        return [full.t()]
    if layout is Layout.delta_inputs:
        query, key, value, *others = architecture.linear_attention.input_parts
        return list(full.split([query + key + value, *others]))
    if layout is not Layout.qkv:
        return [full]
    groups, width = architecture.num_key_value_heads, architecture.head_dim
    heads, kinds = architecture.num_attention_heads // groups, 1 + architecture.of.gates_attention
    rest = full.shape[1:]
    sizes = [kinds * heads * width, width, width]
    query, key, value = full.reshape(groups, sum(sizes), *rest).split(sizes, dim=1)
    query = query.reshape(groups, kinds, heads, width, *rest).transpose(1, 2)
    return [part.reshape(-1, *rest) for part in (query, key, value)]


def _cut_apart(layout: Layout, num_rows: int, architecture: Architecture) -> list[int]:
    """The sizes of the parts of a tensor's rows that are cut over tensor-parallel ranks each by itself."""
    if layout is Layout.gate_up:
        return [num_rows // 2] * 2
    if layout in (Layout.delta_inputs, Layout.delta_qkv):
        parts = architecture.linear_attention.input_parts[: 6 if layout is Layout.delta_inputs else 3]
        return [size * num_rows // sum(parts) for size in parts]
    return [num_rows]


def shard(layout: Layout, full: torch.Tensor, rank: int, size: int, architecture: Architecture) -> torch.Tensor:
    """The part of a full Megatron tensor that a tensor-parallel rank holds."""
    if size == 1 or layout is Layout.replicated:
        return full
    if layout is Layout.columns:
        return full.chunk(size, dim=1)[rank]
    parts = full.split(_cut_apart(layout, full.shape[0], architecture))
    own = [part.chunk(size)[rank] for part in parts]
    return own[0] if len(own) == 1 else torch.cat(own)


def unshard(layout: Layout, shards: list[torch.Tensor], architecture: Architecture) -> torch.Tensor:
    """Inverse of `shard`, over all ranks."""
    if len(shards) == 1 or layout is Layout.replicated:
        return shards[0]
    if layout is Layout.columns:
        return torch.cat(shards, dim=1)
    sizes = _cut_apart(layout, shards[0].shape[0], architecture)
    return torch.cat([own for part in zip(*(shard.split(sizes) for shard in shards)) for own in part])
