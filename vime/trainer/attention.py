"""Attention over packed sequences on `scaled_dot_product_attention`.

It follows the plan of `PackedSequences`. Rotary embedding is applied here too, with cosines and sines computed once per
micro-batch from Megatron's own frequencies. With context parallelism queries stay, keys and values are gathered, and each of a
rank's two chunks of a sequence sees the keys up to its end: causal attention aligned at the last key, for which PyTorch has flash
kernels on CUDA, so nowhere there are scores of all pairs of tokens. Layers of local attention compute sequences longer
than their window in blocks.

A sink (arXiv 2309.17453) is a score of each head that takes a share of the softmax and has no value. Here it is a first key that
everyone sees: queries have one more channel, the sink, in which this key is 1 and all others are 0.

Shape suffixes: T tokens of this rank's row, R tokens of the whole row, P tokens with padding, H heads (G key-value groups),
D channels of a head, S sequence, Q the part of a sequence on this rank, B batch.
"""

from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.utils import is_layer_window_attention, make_sharded_tensors_for_checkpoint
from torch.nn.attention.bias import CausalBias, causal_lower_right

from vime.model.size import SINK_CHANNELS
from vime.trainer.operations import OPERATIONS
from vime.trainer.packed_sequences import PackedSequences


class PackedAttention(torch.nn.Module):
    """`core_attention` of Megatron's local layer spec: causal self-attention with grouped queries, packed or `sbhd`."""

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        attn_mask_type: AttnMaskType,
        attention_type: str,
        softmax_scale: float | None = None,
        pg_collection: Any = None,
        **_: Any,
    ) -> None:
        super().__init__()
        assert attention_type == "self", f"attention_type={attention_type}"
        self.softmax_scale = softmax_scale
        is_local = is_layer_window_attention(config.window_size, config.window_attn_skip_freq or 1, layer_number)
        self.window = config.window_size[0] + 1 if is_local and config.window_size else 0
        """Tokens that a token sees, itself among them, in a layer of local attention; 0 for all before it."""
        self.softmax_offset: torch.nn.Parameter | None = None
        """The sinks of this rank's heads; None without."""
        if config.softmax_type == "learnable":
            self.softmax_offset = torch.nn.Parameter(torch.zeros(config.num_attention_heads // pg_collection.tp.size()))
        self.tensor_group = pg_collection.tp
        self.context_group = pg_collection.cp
        assert self.context_group.size() == config.context_parallel_size, f"{self.context_group.size()} context-parallel ranks"

    def sharded_state_dict(self, prefix: str = "", sharded_offsets: Any = (), metadata: Any = None) -> Any:
        """Megatron's description of the sinks, which are cut over tensor-parallel ranks; there is no other state."""
        state = self.state_dict(prefix="", keep_vars=True)
        groups = {"tp_group": self.tensor_group, "dp_cp_group": metadata["dp_cp_group"]}
        return make_sharded_tensors_for_checkpoint(state, prefix, {"softmax_offset": 0}, sharded_offsets, **groups)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *,
        attn_mask_type: AttnMaskType | None = None,
        attention_bias: torch.Tensor | None = None,
        packed_seq_params: PackedSequences | None = None,
    ) -> torch.Tensor:
        """Returns [T, H * D] for packed [T, H, D], otherwise [S, B, H * D] for [S, B, H, D]; the mask is always causal."""
        if packed_seq_params is not None and self.window and packed_seq_params.local is not None:
            packed_seq_params = packed_seq_params.local
        if packed_seq_params is None:
            assert not self.window, "local attention needs packed sequences"
            assert self.context_group.size() == 1, "context parallelism needs packed sequences"
            output_BHSD = self._attend(*(x.permute(1, 2, 0, 3) for x in (query, key, value)))
            return output_BHSD.permute(2, 0, 1, 3).flatten(2)
        turns_all = packed_seq_params.cos_TD is None or 2 * packed_seq_params.cos_TD.shape[1] == query.shape[2]
        is_plain = packed_seq_params.gathered_R is None and self.softmax_offset is None
        if turns_all and is_plain and not self._cuts(packed_seq_params.lengths[0]):
            found = OPERATIONS.attend_packed(query, key, value, packed_seq_params, self.softmax_scale)
            if found is not None:
                return found.flatten(1)
        if packed_seq_params.cos_TD is not None:
            query, key = (_rotated(x, packed_seq_params) for x in (query, key))
        if packed_seq_params.gathered_R is not None:
            return self._attend_gathered(query, key, value, packed_seq_params)
        return self._attend_packed(query, key, value, packed_seq_params)

    def _cuts(self, num_keys: int) -> bool:
        """True if the last of a sequence of this length does not see all of it."""
        return 0 < self.window < num_keys

    def _attend_gathered(
        self, query_THD: torch.Tensor, key_TGD: torch.Tensor, value_TGD: torch.Tensor, packed: PackedSequences
    ) -> torch.Tensor:
        """Every rank's queries see all earlier keys; the gradients of keys and values are summed on their way back."""
        gathered = gather_from_sequence_parallel_region(torch.cat([key_TGD, value_TGD], dim=-1), group=self.context_group)
        assert packed.gathered_R is not None
        keys, values = (x.split(packed.lengths) for x in gathered.index_select(0, packed.gathered_R).chunk(2, dim=-1))
        queries = query_THD.split([sees.seq_len_q for _, sees in packed.chunks])
        outputs = []
        for query, (number, sees) in zip(queries, packed.chunks):
            key, value = (x[number][: sees.seq_len_kv] for x in (keys, values))
            heads_first = [x.transpose(0, 1).unsqueeze(0) for x in (query, key, value)]
            is_local = self._cuts(sees.seq_len_kv)
            output_BHQD = self._attend_local(*heads_first, packed=packed) if is_local else self._attend(*heads_first, sees=sees)
            outputs.append(output_BHQD.squeeze(0).transpose(0, 1).flatten(1))
        return torch.cat(outputs)

    def _attend_packed(
        self, query_THD: torch.Tensor, key_TGD: torch.Tensor, value_TGD: torch.Tensor, packed: PackedSequences
    ) -> torch.Tensor:
        pad, unpad = packed.pad_index_P, packed.unpad_index_T
        rows = [query_THD, key_TGD, value_TGD]
        if pad is not None:
            rows = [_Pad.apply(x, pad, unpad) for x in rows]
        parts = [x.split([count * length for count, length in packed.batches]) for x in rows]
        outputs = []
        for (count, length), *qkv in zip(packed.batches, *parts):
            batch = (x.view(count, length, *x.shape[1:]).transpose(1, 2) for x in qkv)
            output_BHSD = self._attend_local(*batch, packed=packed) if self._cuts(length) else self._attend(*batch)
            outputs.append(output_BHSD.transpose(1, 2).reshape(count * length, -1))
        output = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        return output if pad is None else _Unpad.apply(output, unpad)

    def _attend_local(
        self, query_BHQD: torch.Tensor, key_BGSD: torch.Tensor, value_BGSD: torch.Tensor, *, packed: PackedSequences
    ) -> torch.Tensor:
        """Attention in which each query sees `window` keys; the last query is that of the last key.

        Blocks of as many queries see the keys of their own block and of the one before, so work and masks do not grow with the
        square of the length.
        """
        outputs, before = [], key_BGSD.shape[2] - query_BHQD.shape[2]
        for start in range(0, query_BHQD.shape[2], self.window):
            query = query_BHQD[:, :, start : start + self.window]
            keys = slice(max(0, before + start - self.window + 1), before + start + query.shape[2])
            key, value = key_BGSD[:, :, keys], value_BGSD[:, :, keys]
            sees = packed.window(query, key, self.window, has_sinks=self.softmax_offset is not None)
            outputs.append(self._attend(query, key, value, sees=sees))
        return torch.cat(outputs, dim=2)

    def _attend(
        self,
        query_BHSD: torch.Tensor,
        key_BGSD: torch.Tensor,
        value_BGSD: torch.Tensor,
        sees: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attention under a causal mask, or under `sees` if that is given."""
        if self.softmax_offset is None:
            return _attended(query_BHSD, key_BGSD, value_BGSD, sees, self.softmax_scale)
        num_channels = query_BHSD.shape[3]
        scale = num_channels**-0.5 if self.softmax_scale is None else self.softmax_scale
        with_sinks = _with_sinks(query_BHSD, key_BGSD, value_BGSD, self.softmax_offset / scale)
        if isinstance(sees, CausalBias):
            sees = causal_lower_right(sees.seq_len_q + 1, sees.seq_len_kv + 1)
        return _attended(*with_sinks, sees, scale)[:, :, 1:, :num_channels]


def _attended(
    query_BHSD: torch.Tensor,
    key_BGSD: torch.Tensor,
    value_BGSD: torch.Tensor,
    sees: torch.Tensor | None,
    scale: float | None,
) -> torch.Tensor:
    is_window = sees is not None and not isinstance(sees, CausalBias)
    found = None if is_window else OPERATIONS.attend(query_BHSD, key_BGSD, value_BGSD, sees, scale)
    if found is not None:
        return found
    if query_BHSD.is_cuda and (query_BHSD.dtype is torch.float32 or is_window):
        key_BGSD, value_BGSD = (whole_heads(x, query_BHSD.shape[1]) for x in (key_BGSD, value_BGSD))
    return F.scaled_dot_product_attention(
        query_BHSD, key_BGSD, value_BGSD, attn_mask=sees, is_causal=sees is None, scale=scale, enable_gqa=True
    )


def _with_sinks(
    query_BHSD: torch.Tensor, key_BGSD: torch.Tensor, value_BGSD: torch.Tensor, sinks_H: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values with one more in front, the sink's, and channels for it.

    The query in front sees the key in front alone and is there so that kernels for square causal masks serve.
    """
    batch, _, length, num_channels = query_BHSD.shape
    sink = sinks_H.to(query_BHSD.dtype).view(1, -1, 1, 1).expand(batch, -1, length, 1)
    query = F.pad(torch.cat([query_BHSD, sink], dim=3), (0, SINK_CHANNELS - 1, 1, 0))
    first = key_BGSD.new_zeros(num_channels + SINK_CHANNELS)
    first[num_channels] = 1
    key = torch.cat([first.expand(*key_BGSD.shape[:2], 1, -1), F.pad(key_BGSD, (0, SINK_CHANNELS))], dim=2)
    return query, key, F.pad(value_BGSD, (0, SINK_CHANNELS, 1, 0))


def whole_heads(x_BGSD: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Repeats keys or values for each query head, for kernels that have no grouped queries."""
    return x_BGSD.repeat_interleave(num_heads // x_BGSD.shape[1], dim=1)


def _rotated(x_THD: torch.Tensor, packed: PackedSequences) -> torch.Tensor:
    """Turned heads. Where cosines are fewer than pairs of channels, the last channels stay as they are."""
    assert packed.cos_TD is not None
    width = 2 * packed.cos_TD.shape[1]
    turned = _Rotate.apply(x_THD[..., :width], packed.cos_TD, packed.sin_TD)
    return turned if width == x_THD.shape[2] else torch.cat([turned, x_THD[..., width:]], dim=-1)


class _Pad(torch.autograd.Function):
    """Copies rows into padded places; the backward pass drops the gradient of padding, which is zero."""

    @staticmethod
    def forward(ctx: Any, x_T: torch.Tensor, pad_index_P: torch.Tensor, unpad_index_T: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(unpad_index_T)
        return x_T.index_select(0, pad_index_P)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (unpad_index_T,) = ctx.saved_tensors
        return gradients[0].index_select(0, unpad_index_T), None, None


class _Unpad(torch.autograd.Function):
    """Takes the real rows out of padded places; the gradient of padding is zero."""

    @staticmethod
    def forward(ctx: Any, x_P: torch.Tensor, unpad_index_T: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(unpad_index_T)
        ctx.num_places = x_P.shape[0]
        return x_P.index_select(0, unpad_index_T)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        (unpad_index_T,) = ctx.saved_tensors
        gradient_P = gradients[0].new_zeros(ctx.num_places, *gradients[0].shape[1:])
        return gradient_P.index_copy_(0, unpad_index_T, gradients[0]), None


class _Rotate(torch.autograd.Function):
    """Rotary embedding (arXiv 2104.09864) of half-split heads; its backward is the rotation by the negative angle."""

    @staticmethod
    def forward(ctx: Any, x_THD: torch.Tensor, cos_TD: torch.Tensor, sin_TD: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(cos_TD, sin_TD)
        return _rotate(x_THD, cos_TD, sin_TD)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        cos_TD, sin_TD = ctx.saved_tensors
        return _rotate(gradients[0], cos_TD, -sin_TD), None, None


def _rotate(x_THD: torch.Tensor, cos_TD: torch.Tensor, sin_TD: torch.Tensor) -> torch.Tensor:
    if (found := OPERATIONS.rotate(x_THD, cos_TD, sin_TD)) is not None:
        return found
    cos, sin = cos_TD.unsqueeze(1), sin_TD.unsqueeze(1)
    first, second = x_THD.chunk(2, dim=-1)
    rotated = torch.empty(x_THD.shape, dtype=x_THD.dtype, device=x_THD.device)
    left, right = rotated.chunk(2, dim=-1)
    torch.mul(first, cos, out=left).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=right).addcmul_(first, sin)
    return rotated
