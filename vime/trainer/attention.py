"""Attention over packed sequences on `scaled_dot_product_attention`, for machines without Transformer Engine.

A micro-batch is one row of T tokens, its sequences one after another, longest first. Neighbours of similar length share one
call as a batch padded on the right: under a causal mask no real token sees the padding, so no mask is needed. Rotary
embedding is applied here too, with cosines and sines computed once per micro-batch from Megatron's own frequencies.

Shape suffixes: T tokens of the micro-batch, P tokens with padding, H heads (G key-value groups), D channels of a head,
S sequence, B batch.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.transformer_config import TransformerConfig

MIN_FILL = 0.8
"""A sequence shorter than this share of its batch's longest starts a new batch."""
WIDE_BELOW = 768
"""The CPU's attention kernel is slower in bfloat16 than in float32 for sequences shorter than this (2 times at 170)."""


@dataclass
class PackedSequences(PackedSeqParams):
    """Megatron's description of a packed row, with the plan of our own attention.

    Example: lengths [5, 4, 2] are two batches, (2, 5) and (1, 2): the second sequence is padded by one token, so
    `pad_index_P` has 12 entries and `unpad_index_T` 11.
    """

    batches: list[tuple[int, int]] = field(default_factory=list)
    """(sequences, padded length) of each attention call."""
    position_T: torch.Tensor | None = None
    pad_index_P: torch.Tensor | None = None
    """Token in each padded place; None if no place is padded."""
    unpad_index_T: torch.Tensor | None = None
    cos_TD: torch.Tensor | None = None
    """Cosine of the rotary angle, half as wide as a head; None until the model fills it in."""
    sin_TD: torch.Tensor | None = None


def packed_sequences(lengths: list[int], *, device: torch.device | str = "cpu") -> PackedSequences:
    """The description of sequences with these lengths, packed in this order."""
    lengths_B = torch.tensor(lengths, dtype=torch.int64)
    ends_B = lengths_B.cumsum(0)
    cu_seqlens = F.pad(ends_B, (1, 0)).to(torch.int32)
    starts_T = torch.repeat_interleave(ends_B - lengths_B, lengths_B)
    position_T = torch.arange(int(ends_B[-1])) - starts_T
    batches = _batches(lengths)
    pad_index_P, unpad_index_T = None, None
    if sum(count * length for count, length in batches) > position_T.numel():
        widths_B = torch.tensor([length for count, length in batches for _ in range(count)])
        places_B = widths_B.cumsum(0) - widths_B
        unpad_index_T = torch.repeat_interleave(places_B, lengths_B) + position_T
        pad_index_P = torch.zeros(int(widths_B.sum()), dtype=torch.int64)
        pad_index_P[unpad_index_T] = torch.arange(position_T.numel())
        pad_index_P, unpad_index_T = pad_index_P.to(device), unpad_index_T.to(device)
    longest = max(lengths)
    return PackedSequences(
        qkv_format="thd",
        cu_seqlens_q=cu_seqlens.to(device),
        cu_seqlens_kv=cu_seqlens.to(device),
        max_seqlen_q=longest,
        max_seqlen_kv=longest,
        batches=batches,
        position_T=position_T.to(device),
        pad_index_P=pad_index_P,
        unpad_index_T=unpad_index_T,
    )


def _batches(lengths: list[int]) -> list[tuple[int, int]]:
    batches: list[tuple[int, int]] = []
    for length in lengths:
        if batches and MIN_FILL * batches[-1][1] <= length <= batches[-1][1]:
            batches[-1] = (batches[-1][0] + 1, batches[-1][1])
        else:
            batches.append((1, length))
    return batches


class PackedAttention(torch.nn.Module):
    """`core_attention` of Megatron's local layer spec: causal self-attention with grouped queries, packed or `sbhd`."""

    def __init__(
        self,
        config: TransformerConfig,
        layer_number: int,
        attn_mask_type: AttnMaskType,
        attention_type: str,
        softmax_scale: float | None = None,
        **_: Any,
    ) -> None:
        super().__init__()
        assert attention_type == "self", f"attention_type={attention_type}"
        assert config.context_parallel_size == 1, f"context_parallel_size={config.context_parallel_size}"
        self.softmax_scale = softmax_scale

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
        """Packed [T, H, D] gives [T, H * D]; otherwise [S, B, H, D] gives [S, B, H * D]. Masks are always causal."""
        if packed_seq_params is None:
            output_BHSD = self._attend(*(x.permute(1, 2, 0, 3) for x in (query, key, value)))
            return output_BHSD.permute(2, 0, 1, 3).flatten(2)
        if packed_seq_params.cos_TD is not None:
            query, key = (_Rotate.apply(x, packed_seq_params.cos_TD, packed_seq_params.sin_TD) for x in (query, key))
        return self._attend_packed(query, key, value, packed_seq_params)

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
            outputs.append(self._attend(*batch).transpose(1, 2).reshape(count * length, -1))
        output = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        return output if pad is None else _Unpad.apply(output, unpad)

    def _attend(self, query_BHSD: torch.Tensor, key_BGSD: torch.Tensor, value_BGSD: torch.Tensor) -> torch.Tensor:
        dtype = query_BHSD.dtype
        widen = dtype is torch.bfloat16 and query_BHSD.device.type == "cpu" and query_BHSD.shape[2] < WIDE_BELOW
        query, key, value = (x.float() if widen else x for x in (query_BHSD, key_BGSD, value_BGSD))
        output = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=self.softmax_scale, enable_gqa=True)
        return output.to(dtype)


class _Pad(torch.autograd.Function):
    """Rows into padded places. Backward takes the real places only: what attention sends to padding is zero."""

    @staticmethod
    def forward(ctx: Any, x_T: torch.Tensor, pad_index_P: torch.Tensor, unpad_index_T: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(unpad_index_T)
        return x_T.index_select(0, pad_index_P)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (unpad_index_T,) = ctx.saved_tensors
        return gradients[0].index_select(0, unpad_index_T), None, None


class _Unpad(torch.autograd.Function):
    """Real rows out of padded places; the gradient of padding is zero."""

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
    cos, sin = cos_TD.unsqueeze(1), sin_TD.unsqueeze(1)
    first, second = x_THD.chunk(2, dim=-1)
    rotated = torch.empty(x_THD.shape, dtype=x_THD.dtype, device=x_THD.device)
    left, right = rotated.chunk(2, dim=-1)
    torch.mul(first, cos, out=left).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=right).addcmul_(first, sin)
    return rotated


def fill_rotary(packed: PackedSequences, angles_SD: torch.Tensor, dtype: torch.dtype) -> None:
    """Looks up cosine and sine of every token's position; `angles_SD` are Megatron's, [longest, D] with equal halves."""
    half_SD = angles_SD[:, : angles_SD.shape[1] // 2]
    packed.cos_TD = half_SD.cos().to(dtype)[packed.position_T]
    packed.sin_TD = half_SD.sin().to(dtype)[packed.position_T]
