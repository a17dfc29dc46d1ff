"""The writing of a checkpoint in Megatron's distributed format: a thread of each rank, and the completion of the folder.

Megatron plans the files, and their format is Megatron's. Its own writing forks processes and starts a manager process. Neither is
safe while other threads compute, as in a Ray actor, so the writing is done here.
"""

import queue
import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.core import CheckpointingConfig, save_config
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy

from vime.errors import CheckpointError
from vime.files.folders import put_in_place, sync, writing_place
from vime.trainer import manifest


def gather(value: Any) -> list[Any]:
    """Gathers the values of all ranks, in order; a collective."""
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, value)
    return gathered


class _Plan(TorchDistSaveShardedStrategy):
    """Megatron's own strategy up to its plan: this rank's part to write is in `writer`, the index of all parts in `metadata`."""

    writer: Any
    metadata: Any

    def _get_save_and_finalize_callbacks(self, writer: Any, save_state_dict_ret: Any) -> Any:
        self.writer, self.metadata, _ = save_state_dict_ret
        return super()._get_save_and_finalize_callbacks(writer, save_state_dict_ret)


class PendingSave:
    """A checkpoint that a thread of each rank is writing."""

    def __init__(self, folder: Path, plan: _Plan, run: dict[str, Any]) -> None:
        self._folder, self._plan, self._run = folder, plan, run
        executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._written: Future[tuple[list[Any], dict[str, Any]]] = executor.submit(_write, plan.writer)
        executor.shutdown(wait=False)

    def is_written(self) -> bool:
        """True once this rank has written its files, or failed to."""
        return self._written.done()

    def finish(self) -> None:
        """Waits for the files of all ranks and completes the folder; a collective. Raises `CheckpointError` on every rank."""
        failure = self._written.exception()
        outcomes = gather(([], {}, _reason(failure)) if failure else (*self._written.result(), None))
        failures = [error for _, _, error in outcomes if error]
        if dist.get_rank() == 0 and not failures:
            try:
                self._complete(outcomes)
            except OSError as error:
                failures = [repr(error)]
        failures = gather(failures)[0]
        if failures:
            raise CheckpointError(f"{self._folder} could not be written: {'; '.join(failures)}; {free_space(self._folder)}")

    def _complete(self, outcomes: list[Any]) -> None:
        temporary = writing_place(self._folder)
        self._plan.writer.finish(self._plan.metadata, [results for results, _, _ in outcomes])
        save_config(CheckpointingConfig(self._plan.backend, self._plan.version), str(temporary))
        files = {name: entry for _, part, _ in outcomes for name, entry in part.items()}
        for path in [path for path in temporary.iterdir() if path.name not in files]:
            sync(path)
            files[path.name] = manifest.describe_file(path)
        manifest.write(temporary, self._run, files)
        put_in_place(temporary, self._folder)


def start(folder: Path, state: dict[str, Any], run: dict[str, Any]) -> PendingSave:
    """Starts to write a state on the CPU, sharded as Megatron describes it, beside `folder`, which must exist; a collective."""
    filesystem_async._results_queue = queue.Queue()  # Megatron would start a process for a queue that nobody here uses
    plan = _Plan("torch_dist", 1, thread_count=1)
    dist_checkpointing.save(state, str(writing_place(folder)), plan, async_sharded_save=True)
    return PendingSave(folder, plan, run | {"num_ranks": dist.get_world_size()})


def _write(writer: Any) -> tuple[list[Any], dict[str, Any]]:
    """Writes this rank's files in this thread. Raises any error of the writing."""
    results: list[Any] = []
    files = {}
    for path, name, content in writer.write_buckets:
        answer: queue.Queue[tuple[int, Any]] = queue.Queue()
        pending: queue.Queue[int] = queue.Queue()
        pending.put(0)
        transforms = [writer.transforms]
        writer.write_preloaded_data(transforms, 0, (path, name, content), answer, pending, use_fsync=True)
        _, result = answer.get()
        if isinstance(result, Exception):
            raise result
        results += result
        files[name] = manifest.describe_file(Path(path))
    return results, files


def _reason(error: BaseException) -> str:
    """The cause of the failure: where PyTorch reports the position in a file, the operating system's error that led to it."""
    while error.__context__ is not None and not isinstance(error, OSError):
        error = error.__context__
    return repr(error)


def free_space(folder: Path) -> str:
    """Advice for an error that a full disk may have caused."""
    place = next(parent for parent in folder.parents if parent.exists())
    free = shutil.disk_usage(place).free / 2**20
    return f"{place} has {free:.0f} MiB free: make room, or set trainer.keep_checkpoints lower, then resume"
