"""Starts vLLM's API server; on a CPU its engine and worker are forked instead of each importing everything again.

    python -m vime.serving.vllm_server --model … --port …        (arguments as for `vllm serve`)

Three processes that import torch and vLLM one after the other are most of a server's start. vLLM forks by default, but on a
CPU it spawns, because a spawned worker reads its OpenMP threads and cores from the environment. Here the parent runs with one
OpenMP thread (so there is no thread pool that a fork could break) and the forked worker is given its cores and threads.
"""

import os
from collections.abc import Callable
from typing import Any


def fork_on_cpu() -> None:
    """Makes vLLM fork on a CPU; on other platforms it changes nothing."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm.v1.executor.multiproc_executor import WorkerProc

    platform = type(current_platform)
    check_and_update_config = platform.check_and_update_config

    def check_then_fork(vllm_config: Any) -> None:
        check_and_update_config(vllm_config)
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"

    platform.check_and_update_config = staticmethod(check_then_fork)
    WorkerProc.worker_main = staticmethod(_bound(WorkerProc.worker_main))


def _bound(worker_main: Callable[..., None]) -> Callable[..., None]:
    """The worker's main function, run on the cores and with the threads that a spawned one would read at its start."""

    def bound_worker_main(*args: Any, **kwargs: Any) -> None:
        import torch

        cores = {int(core) for core in os.environ.get("GOMP_CPU_AFFINITY", "").split()}
        if cores:
            os.sched_setaffinity(0, cores)
            torch.set_num_threads(len(cores))
        worker_main(*args, **kwargs)

    return bound_worker_main


def main() -> None:
    """Runs the server until it is told to stop."""
    fork_on_cpu()
    from vllm.entrypoints.launchers.api_server.entry import main as serve

    serve()


if __name__ == "__main__":
    main()
