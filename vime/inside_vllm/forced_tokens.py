"""Replies of a rehearsal: a request may say which tokens are sampled, and gets them with the logprobs that the model gives them.

`extra_args.forced_token_ids` of a request's sampling parameters are its first tokens; behind them it is sampled as usual. Nothing
else of the request changes: the model computes every token, temperature and nucleus apply to its logprobs, and texts that end a
reply end it. Only servers of a rehearsal are patched (`rehearse=true`).
"""

import os
from typing import Any

VARIABLE = "VIME_FORCED_TOKENS"
ENVIRONMENT = {VARIABLE: "1"}
"""The environment of a server that takes forced tokens."""
FORCED = "forced_token_ids"
LEAST_LOGPROB = -9999.0
"""Logprob of a forced token that nucleus sampling leaves out, in place of minus infinity, which JSON does not have."""


def wanted() -> bool:
    """True if this process is to take forced tokens."""
    return os.environ.get(VARIABLE) == "1"


def take_forced_tokens() -> None:
    """Makes vLLM's model runner on a CPU sample the tokens that requests name."""
    from vllm.v1.sample.sampler import Sampler
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    run, sample = CPUModelRunner._sample, Sampler.sample

    def run_with_forced(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.sampler.forced = _forced(self)
        return run(self, *args, **kwargs)

    def sample_forced(self: Any, *args: Any, **kwargs: Any) -> Any:
        sampled, logprobs = sample(self, *args, **kwargs)
        for row, token in getattr(self, "forced", {}).items():
            sampled[row] = token
            if logprobs is not None:
                logprobs[row, token] = logprobs[row, token].clamp(min=LEAST_LOGPROB)
        return sampled, logprobs

    CPUModelRunner._sample = run_with_forced
    Sampler.sample = sample_forced


def _forced(runner: Any) -> dict[int, int]:
    """The token that each request of the batch is to get next, by its row; none behind the forced ones."""
    found: dict[int, int] = {}
    for row, request_id in enumerate(runner.input_batch.req_ids):
        request = runner.requests[request_id]
        extra = (request.sampling_params.extra_args or {}) if request.sampling_params is not None else {}
        forced = extra.get(FORCED) or ()
        if len(request.output_token_ids) < len(forced):
            found[row] = int(forced[len(request.output_token_ids)])
    return found
