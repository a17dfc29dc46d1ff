"""The experts of each token on a CPU (`--enable-return-routed-experts`), where vLLM refuses to report them.

vLLM reports them by its second model runner, which needs Triton, and a CPU has the first one. All else works there too: routers
give the experts of a step's tokens to a capture function (`CPURouter.set_capture_fn`); the worker's connector cuts them by
request, and keeps those of cached prefixes under the hashes of their blocks, as long as these are cached; the scheduler's
connector puts them into the outputs. Here the first runner calls the worker's connector as the second one does.
"""

from typing import Any
from unittest.mock import patch

import numpy as np


class StepBatch:
    """The requests of a step as the connector reads them: ids, computed tokens before it, and ends of their tokens in it."""

    def __init__(self, runner: Any) -> None:
        batch = runner.input_batch
        self.req_ids = list(batch.req_ids)
        self.num_computed_tokens_np = batch.num_computed_tokens_cpu[: batch.num_reqs].copy()
        self.query_start_loc_np = runner.query_start_loc.np[: batch.num_reqs + 1].copy()


def report_on_cpu() -> None:
    """Lets servers on a CPU report the experts of each token; without the flag nothing changes."""
    from vllm.config import VllmConfig
    from vllm.distributed.aux_output_connector.worker import get_aux_output_connector
    from vllm.platforms import current_platform
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    verify = VllmConfig._verify_aux_output_compatibility
    initialize, execute, sample = (getattr(CPUModelRunner, name) for name in METHODS)

    def verify_without_runner(self: Any) -> None:
        if self.aux_output_config.enabled and self.speculative_config is not None:
            raise ValueError("--enable-return-routed-experts on a CPU is incompatible with speculative decoding.")
        with patch.object(type(current_platform), "is_out_of_tree", lambda _: True):  # which has a model runner of its own
            verify(self)

    def initialize_kv_cache(self: Any, kv_cache_config: Any, *args: Any, **kwargs: Any) -> None:
        initialize(self, kv_cache_config, *args, **kwargs)
        self.experts, self.experts_of_step = None, None
        if self.vllm_config.aux_output_config.enabled:
            self.experts = get_aux_output_connector(self.model, self.vllm_config, kv_cache_config)

    def execute_model(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        if self.experts is None:
            return execute(self, scheduler_output, *args, **kwargs)
        self.experts.begin_step(scheduler_output.aux_output_connector_metadata)
        output = execute(self, scheduler_output, *args, **kwargs)
        if output is None:  # the step has tokens, and is sampled next
            self.experts_of_step = self.experts.prepare_output(StepBatch(self))
        return output

    def sample_tokens(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = sample(self, *args, **kwargs)
        if self.experts is not None and self.experts_of_step is not None:
            pending, self.experts_of_step = self.experts_of_step, None
            num_sampled = np.array([len(ids) for ids in output.sampled_token_ids])
            pending.enqueue_cpu_copy(num_sampled, np.zeros_like(num_sampled))
            output.aux_output_connector_output = pending.process_output()
        return output

    VllmConfig._verify_aux_output_compatibility = verify_without_runner
    for name, method in zip(METHODS, (initialize_kv_cache, execute_model, sample_tokens)):
        setattr(CPUModelRunner, name, method)


METHODS = ("initialize_kv_cache", "execute_model", "sample_tokens")
"""Methods of the runner that are replaced."""
