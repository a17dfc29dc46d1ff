"""The model's head in chunks: logprob and entropy of wanted tokens from hidden states, without ever holding all logits.

A chunk's logits are computed twice, for the values and for the gradient. The gradient of the head's weight is a sum over chunks;
it is taken in float32, straight into Megatron's gradient buffer where there is one, because a sum in bfloat16 loses terms smaller
than 1/256 of it. With tensor parallelism every rank holds a part of the vocabulary; sums and maxima go over the group.

Shape suffixes: N tokens, C tokens of a chunk, J tokens wanted at each place, V vocabulary of this rank, H hidden, R the rank
of an adapter of the head.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from vime.trainer.weight_gradient import add_weight_gradient, kept_gradient


def chunked_logprobs(
    hidden_NH: torch.Tensor,
    weight_VH: torch.Tensor,
    target_NJ: torch.Tensor,
    *,
    temperature: float,
    chunk: int,
    is_fused: bool = False,
    added: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logprobs of the targets [N, J] and entropy of their distribution [N], float32, with `chunk` tokens' logits at a time.

    A target below 0 is none: its logprob means nothing, and must not have a gradient. The product of the matrices `added`, [N, R]
    and [V, R], is a part of the logits; the gradient of the first is this rank's part of it.

    `is_fused` says that Megatron's layers add their weights' gradients to its buffers as well (`gradient_accumulation_fusion`).
    """
    return _ChunkedHead.apply(hidden_NH, weight_VH, target_NJ, temperature, chunk, is_fused, *(added or (None, None)))


class _ChunkedHead(torch.autograd.Function):
    """With p = softmax(logits / temperature): d logprob / d logits = (onehot - p) / temperature, and
    d entropy / d logits = -p (log p + entropy) / temperature.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_NH: torch.Tensor,
        weight_VH: torch.Tensor,
        target_NJ: torch.Tensor,
        temperature: float,
        chunk: int,
        is_fused: bool,
        low_NR: torch.Tensor | None,
        b_VR: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        local_NJ, is_local_NJ = local_targets(target_NJ, weight_VH.shape[0])
        chunks = [slice(start, start + chunk) for start in range(0, hidden_NH.shape[0], chunk)]
        parts = [
            _values(_logits(hidden_NH, weight_VH, low_NR, b_VR, part), local_NJ[part], is_local_NJ[part], temperature)
            for part in chunks
        ]
        if not parts:  # context parallelism may leave a rank without a wanted token
            parts = [tuple(hidden_NH.new_zeros(shape, dtype=torch.float32) for shape in (local_NJ.shape, (0,), (0,)))]
        logprob_NJ, entropy_N, log_total_N = (torch.cat(values) for values in zip(*parts))
        ctx.save_for_backward(hidden_NH, weight_VH, local_NJ, is_local_NJ, log_total_N, entropy_N, low_NR, b_VR)
        ctx.temperature, ctx.chunk, ctx.is_fused = temperature, chunk, is_fused
        ctx.weight, ctx.main_gradient = weight_VH, getattr(weight_VH, "main_grad", None)
        ctx.set_materialize_grads(False)
        return logprob_NJ, entropy_N

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        hidden_NH, weight_VH, local_NJ, is_local_NJ, log_total_N, entropy_N, *factors = ctx.saved_tensors
        low_NR, b_VR = cast(tuple[Any, Any], tuple(factors))  # None without an adapter
        is_trained, sum_VH = ctx.needs_input_grad[1], ctx.main_gradient
        if is_trained and sum_VH is None:
            sum_VH = torch.zeros(weight_VH.shape, dtype=torch.float32, device=weight_VH.device)
        hidden_gradient_NH = torch.empty_like(hidden_NH)
        of_low_NR: Any = None if low_NR is None else torch.empty_like(low_NR)
        of_b_VR: Any = None if b_VR is None else torch.zeros(b_VR.shape, dtype=torch.float32, device=b_VR.device)
        by_logprob_NJ, by_entropy_N = (None if gradient is None else gradient / ctx.temperature for gradient in gradients)
        assert by_logprob_NJ is not None or by_entropy_N is not None, "a backward pass without a gradient"
        by_logprob_NJ = log_total_N.new_zeros(local_NJ.shape) if by_logprob_NJ is None else by_logprob_NJ
        by_logprob_N, own_NJ = by_logprob_NJ.sum(1), by_logprob_NJ * is_local_NJ
        for start in range(0, hidden_NH.shape[0], ctx.chunk):
            part = slice(start, start + ctx.chunk)
            by_entropy_C = None if by_entropy_N is None else by_entropy_N[part]
            known = log_total_N[part], entropy_N[part], by_logprob_N[part], by_entropy_C, ctx.temperature
            logits_CV = _logits(hidden_NH, weight_VH, low_NR, b_VR, part)
            place_CJ, own_CJ = local_NJ[part], own_NJ[part]
            if place_CJ.shape[1] == 1:
                logits_gradient_CV = _compiled_gradient(logits_CV, *known)
                logits_gradient_CV.scatter_(1, place_CJ, _gradient(logits_CV.gather(1, place_CJ), *known, own_CJ))
            else:  # a token may be several of the targets, and their gradients are added before they are rounded
                own_CV = torch.zeros_like(logits_CV, dtype=torch.float32).scatter_add_(1, place_CJ, own_CJ)
                logits_gradient_CV = _compiled_gradient(logits_CV, *known, own_CV)
            torch.mm(logits_gradient_CV, weight_VH, out=hidden_gradient_NH[part])
            if is_trained:
                add_weight_gradient(hidden_NH[part], logits_gradient_CV, sum_VH)
            if low_NR is not None and b_VR is not None:
                torch.mm(logits_gradient_CV, b_VR, out=of_low_NR[part])
                of_b_VR += logits_gradient_CV.t() @ low_NR[part]
        if parallel_state.get_tensor_model_parallel_world_size() > 1:
            dist.all_reduce(hidden_gradient_NH, group=parallel_state.get_tensor_model_parallel_group())
        of_added = of_low_NR, None if of_b_VR is None else of_b_VR.to(hidden_NH.dtype)
        if not is_trained:
            return hidden_gradient_NH, None, None, None, None, None, *of_added
        is_kept = ctx.main_gradient is not None
        weight_gradient_VH = kept_gradient(ctx.weight, is_always=ctx.is_fused) if is_kept else sum_VH.to(weight_VH.dtype)
        return hidden_gradient_NH, weight_gradient_VH, None, None, None, None, *of_added


def _logits(
    hidden_NH: torch.Tensor, weight_VH: torch.Tensor, low_NR: torch.Tensor | None, b_VR: torch.Tensor | None, part: slice
) -> torch.Tensor:
    """The logits of some tokens, [C, V]."""
    logits_CV = hidden_NH[part] @ weight_VH.t()
    return logits_CV if low_NR is None or b_VR is None else logits_CV.addmm_(low_NR[part], b_VR.t())


def local_targets(target_NJ: torch.Tensor, vocabulary: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Place of each target in this rank's part of the vocabulary, and whether it is there; if not, the place is arbitrary."""
    local_NJ = target_NJ - parallel_state.get_tensor_model_parallel_rank() * vocabulary
    is_local_NJ = (local_NJ >= 0) & (local_NJ < vocabulary)
    return local_NJ.clamp(0, vocabulary - 1), is_local_NJ


def all_max(x: torch.Tensor) -> torch.Tensor:
    """Maxima over the tensor-parallel ranks, in place."""
    if parallel_state.get_tensor_model_parallel_world_size() > 1:
        dist.all_reduce(x, op=dist.ReduceOp.MAX, group=parallel_state.get_tensor_model_parallel_group())
    return x


def all_sum(x: torch.Tensor) -> torch.Tensor:
    """Sums over the tensor-parallel ranks, in place."""
    if parallel_state.get_tensor_model_parallel_world_size() > 1:
        dist.all_reduce(x, group=parallel_state.get_tensor_model_parallel_group())
    return x


def _values(
    logits_CV: torch.Tensor, local_CJ: torch.Tensor, is_local_CJ: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logprobs, entropy and logarithm of the sum of exponentials."""
    largest_C = all_max(logits_CV.amax(1).float()) / temperature
    at_targets_CJ = _shifted(logits_CV.gather(1, local_CJ), largest_C, temperature) * is_local_CJ
    sums = torch.stack([*at_targets_CJ.unbind(1), *_sums_of_exponentials(logits_CV, largest_C, temperature)])
    *at_targets, total_C, weighted_C = all_sum(sums).unbind()
    log_total_C = total_C.log()
    logprobs_CJ = torch.stack(at_targets, 1) - log_total_C.unsqueeze(1)
    return logprobs_CJ, log_total_C - weighted_C / total_C, log_total_C + largest_C


def _shifted(logits_CV: torch.Tensor, offset_C: torch.Tensor, temperature: float) -> torch.Tensor:
    """Logits divided by the temperature, minus one number per row, as a new float32 tensor."""
    logits_CV = logits_CV.float()
    return (logits_CV if temperature == 1.0 else logits_CV / temperature) - offset_C.unsqueeze(1)


def _few_passes(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of elementwise operations and sums over rows; on CUDA compiled to as few passes over memory as possible."""
    return torch.compile(function) if torch.cuda.is_available() else function


@_few_passes
def _sums_of_exponentials(
    logits_CV: torch.Tensor, largest_C: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The sums of exp(x) and of x exp(x) for each row, where x are the shifted logits."""
    shifted_CV = _shifted(logits_CV, largest_C, temperature)
    exp_CV = shifted_CV.exp()
    return exp_CV.sum(1), shifted_CV.mul_(exp_CV).sum(1)


def _gradient(
    logits_CV: torch.Tensor,
    log_total_C: torch.Tensor,
    entropy_C: torch.Tensor,
    by_logprob_C: torch.Tensor,
    by_entropy_C: torch.Tensor | None,
    temperature: float,
    own_CV: torch.Tensor | None = None,
) -> torch.Tensor:
    """The gradient of the logits, rounded once to their dtype; `own_CV` is the additional gradient of a target's own logit."""
    logprob_CV = _shifted(logits_CV, log_total_C, temperature)
    factor = -by_logprob_C.unsqueeze(1)
    if by_entropy_C is not None:
        factor = factor - (logprob_CV + entropy_C.unsqueeze(1)) * by_entropy_C.unsqueeze(1)
    gradient_CV = logprob_CV.exp_().mul_(factor)
    return (gradient_CV if own_CV is None else gradient_CV + own_CV).to(logits_CV.dtype)


_compiled_gradient = _few_passes(_gradient)
