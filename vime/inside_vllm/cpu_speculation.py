"""Speculative decoding on a CPU, where vLLM 0.32.0 would sample with temperatures that it never wrote, and not by seeds.

The rejection sampler expands each request's temperature, top-k and top-p to its drafted tokens. vLLM's kernel for CPUs takes
integers of 64 bits, so other tensors are converted, and the result is written into a copy that is thrown away
(`vllm/utils/cpu_triton_utils.py:_expand_kernel_impl`): logits were divided by whatever the memory held before.

A place without a drafted token holds -1, which has to be rejected. The kernel for CPUs takes it for an index, the last token of
the row before: about one in a thousand such places was accepted, and the next token was drawn after a token that is not there.
The scheduler makes such places for a new request whose tokens are all cached but one, for the sake of CUDA graphs; on a CPU
they cost time, and draws of the request's seed, so there are none.

A draft model's tokens are drawn without the seeds of requests (`compute_probs_and_sample_next_token`: "TODO consider seeds"). For
a request with a seed the draft is therefore its likeliest token, whose probability is 1: the reply depends on the request's own
draws alone, and its distribution is the model's, as before.

Shape suffixes: N requests, D drafted tokens of all requests, V vocabulary.
"""

from collections.abc import Callable
from typing import Any


def mend_kernels() -> None:
    """Makes vLLM's CPU platform expand into the tensor that it is given, and reject -1; before kernels are registered."""
    from vllm.utils import cpu_triton_utils

    cpu_triton_utils._expand_kernel_impl = _expand
    accept = cpu_triton_utils._rejection_random_sample_kernel_impl
    if not hasattr(accept, "rejects_placeholders"):  # plugins are loaded several times in some processes
        cpu_triton_utils._rejection_random_sample_kernel_impl = _rejects_placeholders(accept)


def _expand(
    output: Any, input_val: Any, cu_num_tokens: Any, replace_from: Any, replace_to: Any, MAX_NUM_TOKENS: Any = None
) -> None:
    """Writes the value of each request as often as it has drafted tokens, with `replace_to` for `replace_from`.

    `output` has shape [drafted tokens], `input_val` and `cu_num_tokens` (the running sum of drafted tokens) [requests].
    """
    import torch

    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1)).long()
    values = torch.where(input_val == replace_from, torch.as_tensor(replace_to, dtype=input_val.dtype), input_val)
    output.copy_(values.repeat_interleave(counts))


def _rejects_placeholders(accept: Callable[..., None]) -> Callable[..., None]:
    """Returns the kernel `accept` that also takes drafted tokens of -1: they are rejected, as if token 0 had lost its draw."""

    def accept_tokens(
        output_token_ids: Any,
        cu_num_draft_tokens: Any,
        draft_token_ids_D: Any,
        draft_probs_DV: Any,
        target_probs_DV: Any,
        bonus_token_ids: Any,
        recovered_token_ids_D: Any,
        uniform_probs_D: Any,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        accept(
            output_token_ids,
            cu_num_draft_tokens,
            draft_token_ids_D.clamp(min=0),
            draft_probs_DV,
            target_probs_DV,
            bonus_token_ids,
            recovered_token_ids_D,
            uniform_probs_D.masked_fill(draft_token_ids_D < 0, float("inf")),
            *args,
            **kwargs,
        )

    accept_tokens.rejects_placeholders = True  # pyright: ignore[reportFunctionMemberAccess]
    return accept_tokens


def draft_nothing_for_prompts() -> None:
    """Makes vLLM's scheduler keep no places for drafted tokens behind the last token of a prompt."""
    from vllm.v1.core.sched.scheduler import Scheduler

    update = Scheduler._update_after_schedule

    def update_without_places(self: Any, scheduler_output: Any) -> None:
        new = {request.req_id for request in scheduler_output.scheduled_new_reqs}
        new |= scheduler_output.scheduled_cached_reqs.resumed_req_ids
        drafted = scheduler_output.scheduled_spec_decode_tokens
        for request in new & drafted.keys():
            num_places = len(drafted.pop(request))
            scheduler_output.num_scheduled_tokens[request] -= num_places
            scheduler_output.total_num_scheduled_tokens -= num_places
        update(self, scheduler_output)

    Scheduler._update_after_schedule = update_without_places


def draft_by_seeds() -> None:
    """Makes the draft of a request with a seed its likeliest token."""
    from vllm.v1.spec_decode import llm_base_proposer as proposer

    draw = proposer.compute_probs_and_sample_next_token

    def draw_by_seeds(logits: Any, sampling_metadata: Any, *args: Any) -> Any:
        tokens_N, probabilities_NV = draw(logits, sampling_metadata, *args)
        if seeded := [row for row in sampling_metadata.generators if row < len(tokens_N)]:
            tokens_N[seeded] = probabilities_NV[seeded].argmax(-1)
            probabilities_NV[seeded] = 0.0
            probabilities_NV[seeded, tokens_N[seeded]] = 1.0
        return tokens_N, probabilities_NV

    proposer.compute_probs_and_sample_next_token = draw_by_seeds
