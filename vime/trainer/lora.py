"""Low-rank adapters of Megatron's linear layers (LoRA, arXiv 2106.09685, equation 3).

An adapted matrix W becomes W + alpha / rank · B · A. Megatron holds several Hugging Face matrices in one (queries, keys and
values; gate and up projection). Each of them has a pair (A, B) of its own, as in PEFT, and all pairs of one Megatron matrix are
computed together: their A above each other, their B as blocks of one matrix in the order of Megatron's rows.

Under tensor parallelism only the narrow products between A and B are communicated. A column-parallel layer has all of A on every
rank and a part of B's rows; a row-parallel one has a part of A's columns and all of B.

Shape suffixes: T tokens, I inputs and O outputs of this rank's part of the layer, R the ranks of all pairs together.
"""

import hashlib
import math
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.tensor_parallel.layers import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
    set_tensor_model_parallel_attributes,
)
from megatron.core.tensor_parallel.mappings import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
    reduce_from_tensor_model_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
)
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint

from vime.config import LoraConfig, LoraInit
from vime.model.architecture import Architecture
from vime.trainer import names

PREFIX = "lora."
"""Beginning of the names of an adapter's parameters in their layer."""


class Adapter(torch.nn.Module):
    """The pairs (A, B) of one Megatron layer, by the names of the adapted Hugging Face matrices.

    Example: an adapter of rank 8 on queries and values of a layer with 64 inputs has `A["q_proj"]` and `A["v_proj"]`, [8, 64]
    each, and `B["q_proj"]` and `B["v_proj"]`, [outputs, 8] each; keys get no update.
    """

    def __init__(self, weight: torch.Tensor, adapted: names.Mapping, architecture: Architecture, config: LoraConfig) -> None:
        """`weight` is a layer's own, [O, I], or like it; that of an embedding, a row for each word, is transposed."""
        super().__init__()
        self.scale, self._adapted, self._num_ranks = config.alpha / config.rank, adapted, config.rank
        size = parallel_state.get_tensor_model_parallel_world_size()
        heads, groups = architecture.num_attention_heads // size, architecture.num_key_value_heads // size
        self._local = replace(architecture, num_attention_heads=heads, num_key_value_heads=groups)
        parts = names.unfuse(adapted.layout, torch.empty(weight.shape, device="meta"), self._local)
        self._sizes = [part.shape[0] for part in parts]
        chosen = {target.value for target in config.targets}
        self._parts = [name.split(".")[-2] for name in adapted.names]
        outputs = {part: size for part, size in zip(self._parts, self._sizes) if part in chosen}
        like = {"dtype": weight.dtype, "device": weight.device}
        self.A = torch.nn.ParameterDict({part: torch.zeros(config.rank, weight.shape[1], **like) for part in outputs})
        self.B = torch.nn.ParameterDict({part: torch.zeros(size, config.rank, **like) for part, size in outputs.items()})

    def matrices(self) -> tuple[torch.Tensor, torch.Tensor]:
        """A [R, I] and B [O, R] of all pairs together; B without the factor `alpha / rank`."""
        a_RI = torch.cat(list(self.A.values())) if len(self.A) > 1 else next(iter(self.A.values()))
        blocks, width = [], a_RI.shape[0]
        for part, size in zip(self._parts, self._sizes):
            before = list(self.B).index(part) * self._num_ranks if part in self.B else 0
            after = width - before - self._num_ranks
            block = self.B[part] if part in self.B else a_RI.new_zeros(size, width)
            blocks.append(F.pad(block, (before, after)) if part in self.B and before + after else block)
        return a_RI, names.fuse(self._adapted.layout, blocks, self._local)

    def merged(self, weight_OI: torch.Tensor) -> torch.Tensor:
        """The adapted matrix of this rank, rounded once; that of an embedding as the model has it, [I, O]."""
        a_RI, b_OR = self.matrices()
        if self._adapted.names == (names.EMBEDDING,):
            a_RI, b_OR = b_OR.t(), a_RI.t()
        return torch.addmm(weight_OI.float(), b_OR.float(), a_RI.float(), alpha=self.scale).to(weight_OI.dtype)


class _Adapted:
    """A Megatron layer, with an adapter where there is one. The kinds below say how tensor parallelism cuts it."""

    CUT: tuple[str, int]
    """The matrix of a pair that is cut over tensor-parallel ranks, and the dimension."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.lora: Adapter | None = None

    def forward(self, input_: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        """Returns the output with the adapter's, and the bias."""
        layer: Any = super()
        output, bias = layer.forward(input_, *arguments, **options)
        if self.lora is None:
            return output, bias
        a_RI, b_OR = self.lora.matrices()
        low = self.narrow(input_, a_RI)
        if not output._is_view():  # Megatron's reduction on one rank returns a view
            return _AddProduct.apply(output, low, b_OR, self.lora.scale), bias
        added = torch.addmm(output.flatten(0, -2), low.flatten(0, -2), b_OR.t(), alpha=self.lora.scale)
        return added.view(output.shape), bias

    def sharded_state_dict(self, prefix: str = "", sharded_offsets: Any = (), metadata: Any = None) -> Any:
        """Megatron's description of the tensors, but of an adapter's: it would take these for whole on every rank."""
        layer: Any = super()
        state = layer.sharded_state_dict(prefix, sharded_offsets, metadata)
        if self.lora is None:
            return state
        own: Any = self
        tensors, (matrix, axis) = self.lora.state_dict(prefix=PREFIX, keep_vars=True), self.CUT
        axes = {name: axis for name in tensors if name.startswith(f"{PREFIX}{matrix}.")}
        groups = {"tp_group": own.tp_group, "dp_cp_group": metadata["dp_cp_group"]}
        whole = {key: entry for key, entry in state.items() if not key.startswith(prefix + PREFIX)}
        return whole | make_sharded_tensors_for_checkpoint(tensors, prefix, axes, sharded_offsets, **groups)

    def narrow(self, input_: torch.Tensor, a_RI: torch.Tensor) -> torch.Tensor:
        """The narrow product that B is multiplied with."""
        low = F.linear(input_, a_RI)
        return self._over_ranks(low) if parallel_state.get_tensor_model_parallel_world_size() > 1 else low

    def _over_ranks(self, low: torch.Tensor) -> torch.Tensor:
        """The narrow products of all tensor-parallel ranks."""
        raise NotImplementedError


class _AddProduct(torch.autograd.Function):
    """Adds `scale · low · Bᵀ` to the output [..., O] in place, which `torch.addmm` would copy first: nothing here is wider."""

    @staticmethod
    def forward(context: Any, output: torch.Tensor, low: torch.Tensor, b_OR: torch.Tensor, scale: float) -> torch.Tensor:
        context.save_for_backward(low, b_OR)
        context.scale = scale
        context.mark_dirty(output)
        output.view(-1, output.shape[-1]).addmm_(low.flatten(0, -2), b_OR.t(), alpha=scale)
        return output

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        low, b_OR = context.saved_tensors
        (gradient,) = gradients
        of_low = torch.matmul(gradient, b_OR).mul_(context.scale)
        of_b = torch.mm(gradient.flatten(0, -2).t(), low.flatten(0, -2)).mul_(context.scale)
        return gradient, of_low, of_b, None


class ColumnLinear(_Adapted, ColumnParallelLinear):  # type: ignore[misc]
    """A column-parallel layer: all of A is on every rank, and a part of B's rows."""

    CUT = ("B", 0)

    def _over_ranks(self, low: torch.Tensor) -> torch.Tensor:
        over = gather_from_sequence_parallel_region if self.sequence_parallel else copy_to_tensor_model_parallel_region
        return over(low)


class RowLinear(_Adapted, RowParallelLinear):  # type: ignore[misc]
    """A row-parallel layer: a part of A's columns is on every rank, and all of B."""

    CUT = ("A", 1)

    def _over_ranks(self, low: torch.Tensor) -> torch.Tensor:
        over = reduce_scatter_to_sequence_parallel_region if self.sequence_parallel else reduce_from_tensor_model_parallel_region
        return over(low)


class WordEmbedding(_Adapted, VocabParallelEmbedding):  # type: ignore[misc]
    """The embedding of words: a row of A's transposed is what a word looks up, on the rank that has it."""

    CUT = ("A", 1)

    def forward(self, input_: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """Returns the embeddings with the adapter's part."""
        output = VocabParallelEmbedding.forward(self, input_)
        if self.lora is None:
            return output
        a_RV, b_HR = self.lora.matrices()
        local = input_ - self.vocab_start_index
        is_local = (local >= 0) & (local < self.num_embeddings_per_partition)
        low = F.embedding(local.clamp(0, self.num_embeddings_per_partition - 1), a_RV.t()) * is_local.unsqueeze(-1)
        if self.reduce_scatter_embeddings:
            low = reduce_scatter_to_sequence_parallel_region(low.transpose(0, 1).contiguous())
        else:
            low = reduce_from_tensor_model_parallel_region(low)
        return torch.add(output, F.linear(low, b_HR), alpha=self.lora.scale)


Layer = ColumnLinear | RowLinear | WordEmbedding
Places = list[tuple[Layer, Adapter | None]]
"""The layers of a model that can be adapted, with their adapters."""


def attach(model: torch.nn.Module, architecture: Architecture, config: LoraConfig, *, seed: int) -> Places:
    """Freezes the weights of a loaded model (`vime.trainer.model.Chunks`) and gives its layers new adapters, in place of others.

    The values depend on the seed and on the name of each matrix alone, so they are the same under any layout of ranks.
    """
    chunks: Any = model
    for layer in _linears(model):
        layer.lora = None
    model.requires_grad_(False)
    for part in chunks.parts:
        offset = get_transformer_layer_offset(part.config, part.vp_stage)
        for name, layer in list(part.named_modules()):
            if not isinstance(layer, Layer):
                continue
            adapted = names.mapping(f"{name}.weight", part.family, layer_offset=offset)
            is_head, is_lookup = adapted.names == (names.HEAD,), adapted.names == (names.EMBEDDING,)
            weight: Any = part.head_weight() if is_head else layer.weight
            adapter = Adapter(weight.t() if is_lookup else weight, adapted, architecture, config)
            if not len(adapter.A):
                continue
            layer.lora = adapter
            for own, parameter in adapter.named_parameters(prefix=f"{name}.lora"):
                mapping = names.mapping(own, part.family, layer_offset=offset)
                _mark(parameter, mapping.layout, splits_tokens=part.config.sequence_parallel and not is_head)
                if names.is_drawn(own):
                    _initialize(parameter, mapping, config, seed=seed)
        if part.pre_process and part.config.recompute_granularity == "full" and not part.embedding._forward_hooks:
            # without this, nothing that goes into a recomputed first layer has a gradient, and its adapters would get none
            part.embedding.register_forward_hook(_with_gradient)
    return [(layer, layer.lora) for layer in _linears(model)]


def place(places: Places) -> None:
    """Puts adapters back into the layers for which `attach` made them, in place of others."""
    for layer, adapter in places:
        layer.lora = adapter


def _with_gradient(_: torch.nn.Module, __: Any, output: torch.Tensor) -> torch.Tensor:
    return output.requires_grad_() if torch.is_grad_enabled() else output


def _mark(parameter: torch.nn.Parameter, layout: names.Layout, *, splits_tokens: bool) -> None:
    """Marks parts for the gradient's norm, and whole matrices that see a part of the tokens for the sum over the ranks."""
    if layout is not names.Layout.replicated:
        dimension = 1 if layout is names.Layout.columns else 0
        set_tensor_model_parallel_attributes(parameter, True, dimension, 1)
    elif splits_tokens:
        parameter.sequence_parallel = True  # type: ignore[attr-defined]


@torch.no_grad()
def _initialize(parameter: torch.nn.Parameter, mapping: names.Mapping, config: LoraConfig, *, seed: int) -> None:
    """Fills this rank's part of the matrix that is random at first: the whole one is drawn, in float32, and cut."""
    size = parallel_state.get_tensor_model_parallel_world_size() if mapping.layout is names.Layout.columns else 1
    whole = torch.empty(parameter.shape[0], parameter.shape[1] * size)
    digest = hashlib.blake2b(f"{seed} {mapping.names[0]}".encode(), digest_size=7).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest))
    if mapping.names[0].endswith(f"{names.LOOKUP}B"):
        whole.normal_(generator=generator)
    elif config.init is LoraInit.gaussian:
        whole.normal_(std=1.0 / config.rank, generator=generator)
    else:
        torch.nn.init.kaiming_uniform_(whole, a=math.sqrt(5.0), generator=generator)
    rank = parallel_state.get_tensor_model_parallel_rank() if size > 1 else 0
    parameter.copy_(whole.chunk(size, dim=1)[rank])


def adapters(model: torch.nn.Module) -> dict[int | str, Adapter]:
    """The adapter of each adapted weight, by the weight's identity; that of the head, which may be the embedding, by its name."""
    chunks: Any = model
    heads = {part.output_layer for part in chunks.parts if part.post_process}
    found = [(layer, layer.lora) for layer in _linears(model) if layer.lora is not None]
    return {names.HEAD if layer in heads else id(layer.weight): adapter for layer, adapter in found}


def _linears(model: torch.nn.Module) -> list[Layer]:
    return [module for module in model.modules() if isinstance(module, Layer)]
