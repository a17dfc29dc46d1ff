"""Linear attention by a gated delta net (arXiv 2412.06464) on a CPU, where vLLM 0.32.0 has no kernel for it.

vLLM's operation for processors asserts bfloat16 (`cpu_gdn_attention_core`: "CPU GDN attention requires BF16"), and its kernels
take two widths of heads (`chunk_gated_delta_rule_cpu`: "expect head_dim to be equal to head_dim_v", "Unexpected head dim size").
All else is computed here by PyTorch's operations, with the same states in the places that vLLM's scheduler gives them: requests
that generate take one step together, and each prompt, or the part of a prompt that is scheduled, passes in chunks.

Shape suffixes: N requests, T tokens, C tokens of a chunk, J convolved channels, W width of the convolution, H value heads (G key
heads), K key channels, V value channels.
"""

from typing import Any, get_type_hints

import torch
import torch.nn.functional as F

CHUNK = 64
KERNEL_WIDTHS = (64, 128)
"""Widths of heads that vLLM's kernels take, those of keys and values alike."""
NORM_EPS = 1e-6
"""Added to the squared length of queries and keys."""


def attend_in_any_type() -> None:
    """Makes vLLM's operation take float32 and heads of any width as well; before the first layer registers it."""
    from vllm.model_executor.layers.mamba.ops.cpu import gdn_attention

    attend = gdn_attention.cpu_gdn_attention_core

    def attend_in_any(
        mixed_qkv: torch.Tensor, b: torch.Tensor, a: torch.Tensor, core_attn_out: torch.Tensor, layer_name: str
    ) -> None:
        from vllm.forward_context import get_forward_context
        from vllm.utils.torch_utils import _resolve_layer_name

        context = get_forward_context()
        layer: Any = context.no_compile_layers[_resolve_layer_name(layer_name)]
        if mixed_qkv.dtype is torch.bfloat16 and layer.head_k_dim == layer.head_v_dim in KERNEL_WIDTHS:
            return attend(mixed_qkv, b, a, core_attn_out, layer_name)
        if context.attn_metadata is not None:
            found: Any = context.attn_metadata
            _attend(layer, found[layer.prefix], mixed_qkv, b, a, core_attn_out)

    attend_in_any.__annotations__ = get_type_hints(attend) | {"return": None}  # from which vLLM makes the operation's signature
    gdn_attention.cpu_gdn_attention_core = attend_in_any


def _attend(layer: Any, scheduled: Any, qkv_TJ: torch.Tensor, b_TH: torch.Tensor, a_TH: torch.Tensor, out_THV: Any) -> None:
    """Fills the outputs of all scheduled tokens: first those of requests that generate, one each, then of prompts."""
    from vllm.model_executor.layers.mamba.mamba_utils import is_conv_state_dim_first

    assert scheduled.spec_sequence_masks is None, "vLLM's kernels for drafted tokens take neither float32 nor such heads"
    if scheduled.num_actual_tokens == 0:
        return
    convs, states = layer.kv_cache[0], layer.kv_cache[1]
    convs = convs if is_conv_state_dim_first() else convs.transpose(1, 2)  # [places, J, W - 1]
    states = states.view(*states.shape[:2], states.shape[3], states.shape[2])  # [places, H, K, V], as vLLM's kernels have them
    filter_JW = layer.conv1d.weight.squeeze(1)
    places, starts = scheduled.non_spec_state_indices_tensor.long(), scheduled.non_spec_query_start_loc.tolist()
    log_decay_TH = -layer.A_log.float().exp() * F.softplus(a_TH.float() + layer.dt_bias.float())
    strength_TH = b_TH.float().sigmoid()
    if count := scheduled.num_decodes:
        assert scheduled.num_decode_tokens == count, f"{scheduled.num_decode_tokens} tokens of {count} requests"
        at = places[:count]
        seen_NJW = torch.cat([convs[at], qkv_TJ[:count].unsqueeze(2)], dim=2)
        convs[at] = seen_NJW[:, :, 1:]
        query, key, value = _heads(layer, F.silu((seen_NJW * filter_JW).sum(2)))
        state_NHKV = states[at].float() * log_decay_TH[:count, :, None, None].exp()
        change = (value - (key.unsqueeze(2) @ state_NHKV).squeeze(2)) * strength_TH[:count].unsqueeze(2)
        state_NHKV = state_NHKV + key.unsqueeze(3) * change.unsqueeze(2)
        states[at] = state_NHKV.to(states.dtype)
        out_THV[:count] = (query.unsqueeze(2) @ state_NHKV).squeeze(2)
    for number in range(count, count + scheduled.num_prefills):
        own, at = slice(starts[number], starts[number + 1]), int(places[number])
        goes_on = bool(scheduled.has_initial_state[number])
        before_JW = convs[at] if goes_on else torch.zeros_like(convs[at])
        state_HKV = states[at].float() if goes_on else torch.zeros(states.shape[1:])
        seen_JT = torch.cat([before_JW, qkv_TJ[own].t()], dim=1)
        convs[at] = seen_JT[:, seen_JT.shape[1] - before_JW.shape[1] :]
        mixed_TJ = F.silu(F.conv1d(seen_JT.unsqueeze(0), filter_JW.unsqueeze(1), groups=len(filter_JW))[0].t())
        out_THV[own], states[at] = _pass(*_heads(layer, mixed_TJ), log_decay_TH[own], strength_TH[own], state_HKV)


def _heads(layer: Any, mixed_TJ: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values of all value heads, [T, H, channels]; queries and keys have length 1, queries are then scaled."""
    key_width, value_width = layer.key_dim // layer.tp_size, layer.value_dim // layer.tp_size
    query, key, value = mixed_TJ.float().split([key_width, key_width, value_width], dim=1)
    value = value.unflatten(1, (-1, layer.head_v_dim))
    query, key = (_unit(x.unflatten(1, (-1, layer.head_k_dim))) for x in (query, key))
    query, key = (x.repeat_interleave(value.shape[1] // x.shape[1], dim=1) for x in (query, key))
    return query * layer.head_k_dim**-0.5, key, value


def _unit(x: torch.Tensor) -> torch.Tensor:
    return x * (x.square().sum(-1, keepdim=True) + NORM_EPS).rsqrt()


def _pass(
    query_THK: torch.Tensor,
    key_THK: torch.Tensor,
    value_THV: torch.Tensor,
    log_decay_TH: torch.Tensor,
    strength_TH: torch.Tensor,
    state_HKV: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs [T, H, V] of one sequence, and the state behind it, from the state before (arXiv 2412.06464, section 3.3)."""
    outputs = []
    rows = (query_THK, key_THK, value_THV, log_decay_TH.unsqueeze(2), strength_TH.unsqueeze(2))
    for query, key, value, log_decay, strength in zip(*(x.transpose(0, 1).split(CHUNK, dim=1) for x in rows)):
        log_total = log_decay.cumsum(1)  # [H, C, 1]
        between = (log_total - log_total.transpose(1, 2)).tril().exp().tril()
        weak = key * strength
        system = (weak @ key.transpose(1, 2) * between).tril(-1)
        wanted = value * strength - (weak * log_total.exp()) @ state_HKV
        change = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
        outputs.append((query * log_total.exp()) @ state_HKV + (query @ key.transpose(1, 2) * between) @ change)
        last = log_total[:, -1:]
        state_HKV = state_HKV * last.exp() + (key * (last - log_total).exp()).transpose(1, 2) @ change
    return torch.cat(outputs, dim=1).transpose(0, 1), state_HKV
