"""Starts vLLM's API server; on a CPU in two processes that import once, instead of three that import everything each.

    python -m vime.inside_vllm.vllm_server --model … --port …        (arguments as for `vllm serve`)

On a CPU vLLM always has a worker process beside its engine's, and spawns both, because a worker reads its OpenMP threads and
cores from the environment as it starts. Here processes are forked: the parent runs with one OpenMP thread, so there is no thread
pool that a fork could break, and the computing process is given its cores and threads first. A model of one worker then lives in
the engine's process: a step costs no trip between processes, and neither side spins a second while it waits for the next.
"""

import os
import sys
from collections.abc import Callable
from typing import Any

from vime.inside_vllm import exchange, fixed_products, forced_tokens, routed_experts
from vime.inside_vllm.adapter import score_with_adapters
from vime.inside_vllm.cpu_delta_net import attend_in_any_type
from vime.inside_vllm.cpu_integers import mend_integers
from vime.inside_vllm.cpu_seeds import keep_seeds
from vime.inside_vllm.cpu_speculation import draft_by_seeds, draft_nothing_for_prompts
from vime.inside_vllm.token_stream import enrich_streams
from vime.processes.secret import VARIABLE, RequireSecret

NOT_ON_CPU = ("sklearn", "scipy", "triton")
"""Packages that vLLM and transformers import where they are installed, and that text models on a CPU do not need."""


def leave_out_on_cpu() -> None:
    """Hides these packages on a machine without a GPU; this saves a fifth of the computation of a server's start."""
    import torch

    if not torch.cuda.is_available():
        left_out: dict[str, Any] = dict.fromkeys(NOT_ON_CPU)
        sys.modules.update(left_out)


def fork_on_cpu() -> None:
    """Makes vLLM fork on a CPU; on other platforms it changes nothing."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm.v1.engine.core import EngineCoreProc
    from vllm.v1.executor.multiproc_executor import WorkerProc

    keep_seeds()
    score_with_adapters()
    draft_by_seeds()
    draft_nothing_for_prompts()
    mend_integers()
    routed_experts.report_on_cpu()
    if forced_tokens.wanted():
        forced_tokens.take_forced_tokens()
    if fixed_products.wanted():
        fixed_products.fix_products()
    platform = type(current_platform)
    check_and_update_config = platform.check_and_update_config

    def check_then_fork(vllm_config: Any) -> None:
        check_and_update_config(vllm_config)
        if fixed_products.wanted():
            fixed_products.check_model(vllm_config)
        if vllm_config.model_config is not None and vllm_config.model_config.has_inner_state:
            attend_in_any_type()
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
        if vllm_config.parallel_config.world_size_across_dp == 1:
            vllm_config.parallel_config.distributed_executor_backend = "uni"

    platform.check_and_update_config = staticmethod(check_then_fork)
    WorkerProc.worker_main = staticmethod(_bound(WorkerProc.worker_main))
    EngineCoreProc.run_engine_core = staticmethod(_with_cores(EngineCoreProc.run_engine_core))


def pause_at_once() -> None:
    """Makes `/pause` answer as soon as the engine is idle.

    vLLM waits another 20 ms, so that outputs from before the pause tend to arrive before its answer. A weight sync is often
    shorter than that, and a token's weight version is noted in the engine.
    """
    from vllm.v1.engine.async_llm import AsyncLLM

    async def pause_generation(self: Any, *, mode: Any = "abort", clear_cache: bool = True) -> None:
        if clear_cache:
            await self.renderer.clear_mm_cache_async()
        await self.engine_core.pause_scheduler_async(mode=mode, clear_cache=clear_cache)

    AsyncLLM.pause_generation = pause_generation


def _with_cores(run_engine_core: Callable[..., None]) -> Callable[..., None]:
    """Wraps the main function of vLLM's engine process.

    If the engine runs the model in its own process (executor `uni`), it is bound to a worker's cores and threads first.
    """

    def run_engine_core_with_cores(*args: Any, **kwargs: Any) -> None:
        from vllm.utils.ompmultiprocessing import OMPProcessManager

        if kwargs["vllm_config"].parallel_config.distributed_executor_backend != "uni":
            return run_engine_core(*args, **kwargs)
        with OMPProcessManager(kwargs["vllm_config"]).configure_omp_envs(0, 0):
            _bound(run_engine_core)(*args, **kwargs)

    return run_engine_core_with_cores


def _bound(function: Callable[..., None]) -> Callable[..., None]:
    """Wraps a process's main function: it runs on the cores of `GOMP_CPU_AFFINITY`, with one thread for each of them."""

    def bound(*args: Any, **kwargs: Any) -> None:
        import torch

        cores = {int(core) for core in os.environ.get("GOMP_CPU_AFFINITY", "").split()}
        if cores:
            os.sched_setaffinity(0, cores)
            torch.set_num_threads(len(cores))
        function(*args, **kwargs)

    return bound


def main() -> None:
    """Runs the server until a signal stops it."""
    leave_out_on_cpu()
    fork_on_cpu()
    enrich_streams()
    pause_at_once()
    exchange.install()
    if VARIABLE in os.environ:
        sys.argv += ["--middleware", f"{RequireSecret.__module__}.{RequireSecret.__name__}"]
    from vllm.entrypoints.launchers.api_server.entry import main as serve

    serve()


if __name__ == "__main__":
    main()
