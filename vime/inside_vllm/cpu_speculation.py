"""Speculative decoding on a CPU, where vLLM 0.32.0 would sample with temperatures that it never wrote, and not by seeds.

The rejection sampler expands each request's temperature, top-k and top-p to its drafted tokens. vLLM's kernel for CPUs takes
integers of 64 bits, so other tensors are converted, and the result is written into a copy that is thrown away
(`vllm/utils/cpu_triton_utils.py:_expand_kernel_impl`): logits were divided by whatever the memory held before.

A draft model's tokens are drawn without the seeds of requests (`compute_probs_and_sample_next_token`: "TODO consider seeds"). For
a request with a seed the draft is therefore its likeliest token, whose probability is 1: the reply depends on the request's own
draws alone, and its distribution is the model's, as before.

Shape suffixes: N requests, V vocabulary.
"""

from typing import Any


def expand_in_place() -> None:
    """Makes vLLM's CPU platform expand into the tensor that it is given, whatever its type; before kernels are registered."""
    from vllm.utils import cpu_triton_utils

    cpu_triton_utils._expand_kernel_impl = _expand


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
