"""Linear attention by a gated delta net (arXiv 2412.06464) over packed sequences, in PyTorch's operations on every device.

Each value head has a state S, a matrix of key channels by value channels, that begins at zero with every sequence. At each token,
with queries q and keys k of unit length, values v, a decay a and a strength b (equation 10):

    S ← a S;  S ← S + k ⊗ b (v - k S);  output = q S / √(key channels)

Queries, keys and values come from a causal convolution of width K, which sees no token of another sequence either. The state goes
over a sequence in chunks: within one, the outputs and the change of the state are products of matrices (section 3.3, after arXiv
2406.06484), and all sequences of a row take the same step at once.

Megatron-core's layer has the same parameters and checkpoints, which are used here; its own pass refuses packed sequences, and
needs kernels of flash-linear-attention. The outputs are computed again in the backward pass, so that a layer keeps only what it
projects of its input, and not a state for every chunk.

Shape suffixes: T tokens of a row, N chunks, C tokens of a chunk, H value heads (G key heads), K key channels, V value channels,
I channels of the projected input, J those that are convolved, W width of the convolution.
"""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.ssm.gated_delta_net import GatedDeltaNet, GatedDeltaNetSubmodules
from megatron.core.tensor_parallel.mappings import copy_to_tensor_model_parallel_region
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.spec_utils import ModuleSpec, build_module
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.utils.checkpoint import checkpoint

from vime.model.size import STATE_CHUNK
from vime.trainer.lora import ColumnLinear, RowLinear
from vime.trainer.norm import RMSNorm
from vime.trainer.packed_sequences import ChunkPlan, PackedSequences

NORM_EPS = 1e-6
"""Added to the squared length of queries and keys."""


class DeltaNet(GatedDeltaNet):
    """Megatron's layer of linear attention on packed rows, [T, 1, hidden] to [T, 1, hidden]."""

    key_head_dim: int
    value_head_dim: int
    num_key_heads: int
    num_value_heads: int
    in_proj: Any
    conv1d: Any
    out_norm: Any
    out_proj: Any

    def __init__(
        self,
        config: TransformerConfig,
        submodules: GatedDeltaNetSubmodules,
        layer_number: int,
        pg_collection: ProcessGroupCollection,
        **_: Any,
    ) -> None:
        MegatronModule.__init__(self, config)  # Megatron's own constructor refuses to run without its kernels
        assert pg_collection.cp.size() == 1, "a state passes over whole sequences: no context parallelism"
        self.layer_number, self.pg_collection, self.conv_bias = layer_number, pg_collection, False
        ranks = self.tp_size = pg_collection.tp.size()
        shape: Any = config
        self.key_head_dim, self.value_head_dim = shape.linear_key_head_dim, shape.linear_value_head_dim
        self.num_key_heads, self.num_value_heads = shape.linear_num_key_heads, shape.linear_num_value_heads
        self.qk_dim, self.v_dim = self.key_head_dim * self.num_key_heads, self.value_head_dim * self.num_value_heads
        self.in_proj_dim = 2 * (self.qk_dim + self.v_dim + self.num_value_heads)
        self.conv_dim_local_tp = (2 * self.qk_dim + self.v_dim) // ranks
        linear: dict[str, Any] = {"config": config, "bias": False, "is_expert": False, "tp_group": pg_collection.tp}
        self.in_proj = build_module(
            submodules.in_proj,
            config.hidden_size,
            self.in_proj_dim,
            init_method=config.init_method,
            gather_output=False,
            skip_bias_add=False,
            **linear,
        )
        self.conv1d = torch.nn.Module()  # named as Megatron's, for its checkpoints
        self.conv1d.weight = torch.nn.Parameter(torch.empty(self.conv_dim_local_tp, 1, shape.linear_conv_kernel_dim))
        self.dt_bias = torch.nn.Parameter(torch.empty(self.num_value_heads // ranks))
        self.A_log = torch.nn.Parameter(torch.empty(self.num_value_heads // ranks))
        self.out_norm = build_module(
            submodules.out_norm, config=config, hidden_size=self.value_head_dim, eps=config.layernorm_epsilon
        )
        self.out_norm.weight.sequence_parallel = False  # its gradient is summed over the ranks' heads where it is used
        self.out_proj = build_module(
            submodules.out_proj,
            self.v_dim,
            config.hidden_size,
            init_method=config.output_layer_init_method,
            input_is_parallel=True,
            skip_bias_add=True,
            **linear,
        )

    def forward(self, hidden_states: torch.Tensor, *_: Any, packed_seq_params: Any = None, **__: Any) -> Any:
        """Returns the output and no bias."""
        assert isinstance(packed_seq_params, PackedSequences), "linear attention needs packed sequences"
        position_T = packed_seq_params.position_T
        assert position_T is not None
        inputs, _ = self.in_proj(hidden_states)
        norm_weight = self.out_norm.weight
        if self.tp_size > 1:
            norm_weight = copy_to_tensor_model_parallel_region(norm_weight, self.pg_collection.tp)
        attend = partial(
            attend_linear,
            plan=packed_seq_params.chunk_plan(STATE_CHUNK),
            position_T=position_T,
            heads=(self.num_key_heads // self.tp_size, self.num_value_heads // self.tp_size),
            widths=(self.key_head_dim, self.value_head_dim),
            eps=self.out_norm.eps,
        )
        tensors = (inputs.squeeze(1), self.conv1d.weight.squeeze(1), self.A_log, self.dt_bias, norm_weight)
        output: Any = checkpoint(attend, *tensors, use_reentrant=True, preserve_rng_state=False)
        return self.out_proj(output.unsqueeze(1))


DELTA_NET = ModuleSpec(
    module=DeltaNet, submodules=GatedDeltaNetSubmodules(in_proj=ColumnLinear, out_norm=RMSNorm, out_proj=RowLinear)
)
"""The layer that takes the place of attention."""


def attend_linear(
    inputs_TI: torch.Tensor,
    filter_JW: torch.Tensor,
    log_decay_H: torch.Tensor,
    bias_H: torch.Tensor,
    norm_V: torch.Tensor,
    *,
    plan: ChunkPlan,
    position_T: torch.Tensor,
    heads: tuple[int, int],
    widths: tuple[int, int],
    eps: float,
) -> torch.Tensor:
    """Normalized and gated outputs of all value heads, [T, H * V], of one row of sequences.

    `inputs_TI` are queries, keys and values before the convolution, output gates, and the two gates of each value head.
    """
    (key_heads, value_heads), (key_width, value_width) = heads, widths
    sizes = [key_heads * key_width, key_heads * key_width, value_heads * value_width]
    qkv_TJ, gate_TZ, strength_TH, decay_TH = inputs_TI.split([sum(sizes), sizes[2], value_heads, value_heads], dim=1)
    qkv_TJ = F.silu(convolve(qkv_TJ, filter_JW, position_T))
    query, key, value = (
        part.unflatten(1, (count, -1)) for part, count in zip(qkv_TJ.split(sizes, dim=1), (key_heads, key_heads, value_heads))
    )
    log_decay_TH = -log_decay_H.float().exp() * F.softplus(decay_TH.float() + bias_H.float())
    output_THV = delta_rule(query, key, value, log_decay_TH, strength_TH.sigmoid(), plan).to(inputs_TI.dtype)
    normalized = F.rms_norm(output_THV.float(), (value_width,), None, eps).to(inputs_TI.dtype) * norm_V
    return (normalized * F.silu(gate_TZ.unflatten(1, (value_heads, -1)).float())).to(inputs_TI.dtype).flatten(1)


def convolve(x_TJ: torch.Tensor, filter_JW: torch.Tensor, position_T: torch.Tensor) -> torch.Tensor:
    """The causal convolution of each channel with its filter, within each sequence.

    `position_T` are the tokens' places in their sequences.
    """
    width = filter_JW.shape[1]
    result_TJ = x_TJ * filter_JW[:, -1]
    for back in range(1, min(width, x_TJ.shape[0])):
        has_earlier_T1 = (position_T[back:] >= back).unsqueeze(1)
        earlier_TJ = (x_TJ[:-back] * has_earlier_T1) * filter_JW[:, -1 - back]
        result_TJ = result_TJ + F.pad(earlier_TJ, (0, 0, back, 0))
    return result_TJ


def delta_rule(
    query_TGK: torch.Tensor,
    key_TGK: torch.Tensor,
    value_THV: torch.Tensor,
    log_decay_TH: torch.Tensor,
    strength_TH: torch.Tensor,
    plan: ChunkPlan,
) -> torch.Tensor:
    """Outputs of the gated delta rule in float32, [T, H, V], with a state of zeros at the beginning of every sequence.

    Value head h has key head h // (H / G).
    """
    num_heads, channels = value_THV.shape[1], key_TGK.shape[2]
    query, key = (_unit(x.float()) for x in (query_TGK, key_TGK))
    query, key = (x.repeat_interleave(num_heads // x.shape[1], dim=1) for x in (query * channels**-0.5, key))
    strength = strength_TH.float().unsqueeze(2)
    rows = torch.cat([query, key, value_THV.float(), log_decay_TH.unsqueeze(2), strength], dim=2)
    rows = F.pad(rows, (0, 0, 0, 0, 0, 1)).index_select(0, plan.index_P)  # places without a token: zeros, which change nothing
    blocks = rows.unflatten(0, (-1, STATE_CHUNK)).transpose(1, 2)  # [N, H, C, channels]
    query, key, value, log_decay, strength = blocks.split([channels, channels, value_THV.shape[2], 1, 1], dim=3)
    log_total_NHC1 = log_decay.cumsum(2)
    log_between = (log_total_NHC1 - log_total_NHC1.transpose(2, 3)).tril()
    between_NHCC = log_between.exp().tril()
    weak = key * strength
    system_NHCC = (weak @ key.transpose(2, 3) * between_NHCC).tril(-1)
    wanted = torch.cat([value * strength, weak * log_total_NHC1.exp()], dim=3)
    solved = torch.linalg.solve_triangular(system_NHCC, wanted, upper=False, unitriangular=True)
    news, olds = solved.split([value_THV.shape[2], channels], dim=3)
    within = query @ key.transpose(2, 3) * between_NHCC
    from_state, last = query * log_total_NHC1.exp(), log_total_NHC1[:, :, -1:]
    into_state, kept = (key * (last - log_total_NHC1).exp()).transpose(2, 3), last.exp()
    parts = (part.split(plan.at_step) for part in (news, olds, within, from_state, into_state, kept))
    state, outputs = query.new_zeros(plan.at_step[0], num_heads, channels, value_THV.shape[2]), []
    for new, old, inside, asked, added, stays in zip(*parts):
        state = state[: new.shape[0]]
        change = new - old @ state
        outputs.append(asked @ state + inside @ change)
        state = state * stays + added @ change
    return torch.cat(outputs).transpose(1, 2).flatten(0, 1).index_select(0, plan.place_T)


def _unit(x: torch.Tensor) -> torch.Tensor:
    """Vectors of length 1 along the last dimension; one of zeros stays zero."""
    return x * (x.square().sum(-1, keepdim=True) + NORM_EPS).rsqrt()
