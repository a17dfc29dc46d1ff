"""Linear attention by a gated delta net (arXiv 2412.06464) on a CPU, where vLLM 0.32.0 has no kernel for it.

vLLM's operation for processors asserts bfloat16 (`cpu_gdn_attention_core`: "CPU GDN attention requires BF16"), and its kernels
take two widths of heads (`chunk_gated_delta_rule_cpu`: "expect head_dim to be equal to head_dim_v", "Unexpected head dim size").
All else is computed here by transformers' functions in PyTorch's operations, with the same states in the places that vLLM's
scheduler gives them: requests that generate take one step together, and each prompt, or the part of it that is scheduled, passes
in chunks.

Shape suffixes: N requests, B sequences, T tokens, J convolved channels, W width of the convolution, H value heads, V value
channels.
"""

from typing import Any, get_type_hints

import torch
import torch.nn.functional as F

KERNEL_WIDTHS = (64, 128)
"""Widths of heads that vLLM's kernels take, those of keys and values alike."""
SHARED: dict[str, Any] = {"output_final_state": True, "use_qk_l2norm_in_kernel": True}


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
    from transformers.models.qwen3_5 import modeling_qwen3_5
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
        heads = _heads(layer, F.silu((seen_NJW * filter_JW).sum(2)).unsqueeze(1))
        rates = {"g": log_decay_TH[:count].unsqueeze(1), "beta": strength_TH[:count].unsqueeze(1)}
        found, after = modeling_qwen3_5.torch_recurrent_gated_delta_rule(*heads, **rates, initial_state=states[at], **SHARED)
        out_THV[:count], states[at] = found.squeeze(1), after.to(states.dtype)
    for number in range(count, count + scheduled.num_prefills):
        own, at = slice(starts[number], starts[number + 1]), int(places[number])
        if not scheduled.has_initial_state[number]:
            convs[at], states[at] = 0, 0
        seen_JT = torch.cat([convs[at], qkv_TJ[own].t()], dim=1)
        convs[at] = seen_JT[:, seen_JT.shape[1] - convs.shape[2] :]
        heads = _heads(layer, F.silu(F.conv1d(seen_JT.unsqueeze(0), filter_JW.unsqueeze(1), groups=len(filter_JW))).mT)
        rates = {"g": log_decay_TH[own].unsqueeze(0), "beta": strength_TH[own].unsqueeze(0)}
        found, after = modeling_qwen3_5.torch_chunk_gated_delta_rule(*heads, **rates, initial_state=states[at : at + 1], **SHARED)
        out_THV[own], states[at] = found.squeeze(0), after.squeeze(0).to(states.dtype)


def _heads(layer: Any, mixed_BTJ: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values of all value heads, float32 [B, T, H, channels] of B sequences."""
    key_width, value_width = layer.key_dim // layer.tp_size, layer.value_dim // layer.tp_size
    query, key, value = mixed_BTJ.float().split([key_width, key_width, value_width], dim=2)
    value = value.unflatten(2, (-1, layer.head_v_dim))
    query, key = (x.unflatten(2, (-1, layer.head_k_dim)) for x in (query, key))
    query, key = (x.repeat_interleave(value.shape[2] // x.shape[2], dim=2) for x in (query, key))
    return query, key, value
