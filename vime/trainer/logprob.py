"""Log-probability and entropy of given tokens from hidden states, without ever holding all logits.

Only positions that predict a wanted token are projected: on a CPU at once if their logits fit into a chunk, which keeps them for
the backward pass, otherwise chunk by chunk (`vime.trainer.head`).

With context parallelism each rank predicts a part of the wanted tokens; afterwards all have the values of all, since a loss may
need whole sequences.

Shape suffixes: T tokens of this rank's part of the row, N wanted tokens, M those predicted on this rank, K likeliest tokens that
the sampler has recorded at each place, or those of a model, J = 1 + K, P likeliest tokens in each of the parts of the vocabulary,
V vocabulary of this rank, H hidden. `_project` and the functions that it calls work on M tokens and name them N.
"""

from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel.mappings import (
    gather_from_sequence_parallel_region,
    reduce_from_tensor_model_parallel_region,
)

from vime.model.size import LOGITS_IN_CHUNK, LOGITS_IN_CUDA_CHUNK
from vime.trainer.head import all_max, all_sum, chunked_logprobs, local_targets
from vime.trainer.micro_batch import Wanted
from vime.trainer.model import PackedModel
from vime.trainer.operations import OPERATIONS


def token_logprobs(
    model: PackedModel,
    hidden_TH: torch.Tensor,
    wanted: Wanted,
    *,
    temperature: float,
    float32_head: bool = False,
    top_ids_NK: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability of each wanted token, [N, 1], and entropy of the distribution it was drawn from, [N], float32.

    With `top_ids_NK` the log-probabilities of these tokens follow that of the wanted one, [N, 1 + K]; those of ids below 0 mean
    nothing, and must not have a gradient. All are the same on all context-parallel ranks, whose losses are therefore equal; each
    sends gradients through its own part only. With `float32_head`, for use without gradients, the head's products are not rounded
    to the weights' dtype.
    """
    hidden_MH = _predicting(model, hidden_TH, wanted)
    project = _in_float32 if float32_head else _in_chunks
    target_MJ = wanted.target_M.unsqueeze(1)
    if top_ids_NK is not None:
        own_NK = top_ids_NK if wanted.place_M is None else top_ids_NK[wanted.place_M]
        target_MJ = torch.cat([target_MJ, own_NK.long()], 1)
    logprobs_MJ, entropies_M = project(model, hidden_MH, target_MJ, temperature)
    if wanted.place_M is None:
        return logprobs_MJ, entropies_M
    found = torch.cat([logprobs_MJ, entropies_M.unsqueeze(1)], 1)
    part = found.new_zeros(wanted.count, found.shape[1]).index_copy(0, wanted.place_M, found)
    whole = reduce_from_tensor_model_parallel_region(part, group=parallel_state.get_context_parallel_group())
    return whole[:, :-1], whole[:, -1]


@torch.no_grad()
def likeliest_tokens(model: PackedModel, hidden_TH: torch.Tensor, wanted: Wanted, *, num: int) -> torch.Tensor:
    """Ids of the `num` likeliest tokens in the place of each wanted one, likeliest first, [N, K], the same on all ranks of a row.

    The logits are computed for these alone; `token_logprobs` computes them again.
    """
    hidden_MH = _predicting(model, hidden_TH, wanted)
    vocabulary = model.vocab_size // parallel_state.get_tensor_model_parallel_world_size()
    chunk = max((LOGITS_IN_CUDA_CHUNK if hidden_MH.is_cuda else LOGITS_IN_CHUNK) // vocabulary, 1)
    parts = [_likeliest(model.logits(part_NH.unsqueeze(1)).squeeze(1).float(), num) for part_NH in hidden_MH.split(chunk)]
    ids_MK = torch.cat(parts)
    if wanted.place_M is None:
        return ids_MK
    ids_NK = ids_MK.new_zeros(wanted.count, num).index_copy(0, wanted.place_M, ids_MK)
    dist.all_reduce(ids_NK, group=parallel_state.get_context_parallel_group())
    return ids_NK


def _likeliest(logits_NV: torch.Tensor, num: int) -> torch.Tensor:
    """Ids of the largest logits over all parts of the vocabulary, [N, K]."""
    size, rank = parallel_state.get_tensor_model_parallel_world_size(), parallel_state.get_tensor_model_parallel_rank()
    own_NK = logits_NV.topk(min(num, logits_NV.shape[1]))
    if size == 1:
        return own_NK.indices
    ids_NK = own_NK.indices + rank * logits_NV.shape[1]
    found = []
    for own in (own_NK.values, ids_NK):
        parts = [torch.empty_like(own) for _ in range(size)]
        dist.all_gather(parts, own.contiguous(), group=parallel_state.get_tensor_model_parallel_group())
        found.append(torch.cat(parts, 1))
    values_NP, ids_NP = found
    return ids_NP.gather(1, values_NP.topk(num).indices)


def _predicting(model: PackedModel, hidden_TH: torch.Tensor, wanted: Wanted) -> torch.Tensor:
    """Hidden states that predict the wanted tokens, [M, H]."""
    if model.config.sequence_parallel:  # the ranks' heads work on the same tokens, and their gradients are summed there
        hidden_TH = gather_from_sequence_parallel_region(hidden_TH, tensor_parallel_output_grad=False)
    return hidden_TH.index_select(0, wanted.predict_M)


def _in_chunks(
    model: PackedModel, hidden_NH: torch.Tensor, target_NJ: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    vocabulary = model.vocab_size // parallel_state.get_tensor_model_parallel_world_size()
    chunk = max((LOGITS_IN_CUDA_CHUNK if hidden_NH.is_cuda else LOGITS_IN_CHUNK) // vocabulary, 1)
    if hidden_NH.shape[0] <= chunk and not hidden_NH.is_cuda:
        return _project(model, hidden_NH, target_NJ, temperature)
    weight, is_fused = model.head_weight(), model.config.gradient_accumulation_fusion
    more: Any = {"is_fused": is_fused, "added": model.head_factors(hidden_NH)}
    return chunked_logprobs(hidden_NH, weight, target_NJ, temperature=temperature, chunk=chunk, **more)


def _in_float32(
    model: PackedModel, hidden_NH: torch.Tensor, target_NJ: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    chunk = max(LOGITS_IN_CHUNK // (model.vocab_size // parallel_state.get_tensor_model_parallel_world_size()), 1)
    parts = [
        _LogprobAndEntropy.apply(model.logits(part_NH.unsqueeze(1), in_float32=True).squeeze(1), part_NJ, temperature)
        for part_NH, part_NJ in zip(hidden_NH.split(chunk), target_NJ.split(chunk))
    ]
    logprobs, entropies = zip(*parts)
    return torch.cat(logprobs), torch.cat(entropies)


def _project(
    model: PackedModel, hidden_NH: torch.Tensor, target_NJ: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    logits_NV = model.logits(hidden_NH.unsqueeze(1)).squeeze(1)
    is_plain = parallel_state.get_tensor_model_parallel_world_size() == 1 and target_NJ.shape[1] == 1
    if is_plain and (found := OPERATIONS.logprobs(logits_NV, target_NJ[:, 0].contiguous(), temperature)) is not None:
        return found[0].unsqueeze(1), found[1]
    return _LogprobAndEntropy.apply(logits_NV, target_NJ, temperature)


class _LogprobAndEntropy(torch.autograd.Function):
    """Log-softmax at the targets and entropy over a sharded vocabulary.

    With p = softmax(logits / temperature): d logprob / d logits = (onehot - p) / temperature, and
    d entropy / d logits = -p (log p + entropy) / temperature.
    """

    @staticmethod
    def forward(
        ctx: Any, logits_NV: torch.Tensor, target_NJ: torch.Tensor, temperature: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        scaled_NV = logits_NV.float() if temperature == 1.0 else logits_NV.float() / temperature
        shifted_NV = scaled_NV - all_max(scaled_NV.amax(1)).unsqueeze(1)
        local_NJ, is_local_NJ = local_targets(target_NJ, logits_NV.shape[1])
        at_targets_NJ = shifted_NV.gather(1, local_NJ) * is_local_NJ
        exp_NV = shifted_NV.exp()
        sums = torch.stack([*at_targets_NJ.unbind(1), exp_NV.sum(1), torch.linalg.vecdot(exp_NV, shifted_NV)])
        *at_targets, total_N, weighted_N = all_sum(sums).unbind()
        log_total_N = total_N.log()
        entropy_N = log_total_N - weighted_N / total_N
        ctx.save_for_backward(exp_NV, total_N, local_NJ, is_local_NJ, entropy_N)
        ctx.temperature, ctx.dtype = temperature, logits_NV.dtype
        ctx.set_materialize_grads(False)
        return torch.stack(at_targets, 1) - log_total_N.unsqueeze(1), entropy_N

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, None, None]:
        exp_NV, total_N, local_NJ, is_local_NJ, entropy_N = ctx.saved_tensors
        logprob_gradient_NJ, entropy_gradient_N = gradients
        gradient_NV: torch.Tensor | None = None
        if logprob_gradient_NJ is not None:
            scaled_NJ = logprob_gradient_NJ / ctx.temperature
            gradient_NV = torch.mul(exp_NV, (-scaled_NJ.sum(1) / total_N).unsqueeze(1))
            gradient_NV.scatter_add_(1, local_NJ, scaled_NJ * is_local_NJ)
        if entropy_gradient_N is not None:
            probability_NV = exp_NV / total_N.unsqueeze(1)
            logprob_NV = probability_NV.clamp(min=torch.finfo(torch.float32).tiny).log_()
            scale_N = -entropy_gradient_N / ctx.temperature
            entropy_part_NV = probability_NV * logprob_NV.add_(entropy_N.unsqueeze(1)) * scale_N.unsqueeze(1)
            gradient_NV = entropy_part_NV if gradient_NV is None else gradient_NV.add_(entropy_part_NV)
        return None if gradient_NV is None else gradient_NV.to(ctx.dtype), None, None
