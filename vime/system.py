"""Everything that runs besides the driver: Ray, the servers, the trainer and the rollout workers, started side by side.

`async with System(...)` guarantees that whatever was started is stopped, also after an error or Ctrl-C.
"""

import asyncio
import logging
import os
import shutil
import subprocess
import uuid
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from types import TracebackType

import ray
from ray.exceptions import RayError

from vime.checkpoint import Checkpoints
from vime.config import RunConfig
from vime.folders import tidy
from vime.reaper import start_reaper
from vime.report.run_directory import RunDirectory
from vime.rollout.pool import WorkerPool
from vime.serving.probe import probe
from vime.serving.topology import Serving
from vime.serving.weight_sync import WeightSync
from vime.trainer.group import TrainerGroup

logger = logging.getLogger(__name__)

OBJECT_STORE_BYTES = 512 * 2**20
"""Batches are token lists: small beside weights, which do not travel through Ray."""
STOP_TIMEOUT_SECONDS = 30.0


class System:
    """The parts of a run. `serving`, `workers`, `trainer` or `checkpoints` are None where the run does not need them."""

    def __init__(
        self,
        config: RunConfig,
        run_dir: Path,
        *,
        with_trainer: bool,
        with_servers: bool,
        say: Callable[[str], None],
        warn: Callable[[str], None] = logger.warning,
    ) -> None:
        self.run_id = uuid.uuid4().hex[:8]
        self._config = config
        self._say = say
        self._ray_dir = Path("/tmp") / f"vime-{self.run_id}"  # short, because sockets in it must have short paths
        self._owns_ray = False
        self._reaper: subprocess.Popen[bytes] | None = None
        self.serving = Serving(config, run_dir, self.run_id) if with_servers else None
        self.trainer = TrainerGroup(config, run_dir, self.run_id) if with_trainer else None
        self.checkpoints: Checkpoints | None = None
        if self.trainer is not None:
            tidy(run_dir)
            self.checkpoints = Checkpoints(RunDirectory(run_dir).checkpoints, config.trainer, self.trainer, warn=warn)
        self.workers: WorkerPool | None = None
        self.weight_sync: WeightSync | None = None

    async def __aenter__(self) -> "System":
        try:
            self._start_ray()
            await self._start_parts()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if self.checkpoints is not None:
                await self.checkpoints.close(failed=error is not None)
        finally:
            await self.stop()

    async def sync_weights(self, version: int) -> dict[str, float]:
        """Brings the trainer's weights to the servers as `version`, and proves it by digest and probe.

        Raises `WeightSyncError` if a server does not hold them afterwards.
        """
        assert self.trainer and self.serving and self.weight_sync
        payload = await self.trainer.export_weights(version)
        metrics = await self.weight_sync.sync(payload)
        metrics["sync/export_seconds"] = payload.export_seconds
        metrics |= await probe(
            self.serving.endpoints()["actor"],
            partial(self.trainer.logprobs, temperature=self._config.rollout.temperature),
            temperature=self._config.rollout.temperature,
            tolerance=self._config.serving.probe_tolerance or (1e-4 if self._is_float32() else 0.1),
            vocab_size=self._config.model.vocab_size,
            seed=self._config.seed,
            minimum_version=version,
        )
        return metrics

    async def stop(self) -> None:
        """Stops every part that was started; one that will not stop does not keep the others from it."""
        for part in (self.workers, self.serving, self.trainer):
            if part is not None:
                await _stop_within(part.stop(), type(part).__name__)
        if self._owns_ray:
            ray.shutdown()
        shutil.rmtree(self._ray_dir, ignore_errors=True)
        if self._reaper is not None:
            self._reaper.terminate()
            self._reaper.wait(STOP_TIMEOUT_SECONDS)

    def _is_float32(self) -> bool:
        return self._config.trainer.precision.value == "float32"

    def _start_ray(self) -> None:
        """Starts Ray, or joins the cluster of `cluster.ray_address`; a Ray that this process uses already is left as it is."""
        if ray.is_initialized():
            return
        self._say("starting Ray")
        self._owns_ray = True
        self._reaper = start_reaper(owner=os.getpid(), remove=self._ray_dir)
        os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's 15 starves trainer and servers on a busy machine
        if self._config.cluster.ray_address is not None:
            ray.init(address=self._config.cluster.ray_address, namespace=self.run_id, log_to_driver=False)
            return
        ray.init(
            namespace=self.run_id,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            object_store_memory=OBJECT_STORE_BYTES,
            _node_ip_address=self._config.cluster.host,
            _temp_dir=str(self._ray_dir),
        )

    async def _start_parts(self) -> None:
        starts: list[Awaitable[object]] = []
        if self.serving is not None:
            self.serving.start()
            starts.append(self.serving.ready(self._say))
            self.workers = WorkerPool(self._config, self.serving.endpoints())
            starts.append(self.workers.start())
        if self.trainer is not None:
            self.trainer.start()
            starts.append(self.trainer.ready())
        await asyncio.gather(*starts)
        if self.serving is not None and self.trainer is not None:
            self.weight_sync = WeightSync(self.serving, self._config, self.run_id)
            self._say("bringing the trainer's weights to the servers")


async def _stop_within(stopping: Awaitable[None], name: str) -> None:
    try:
        await asyncio.wait_for(stopping, STOP_TIMEOUT_SECONDS)
    except (asyncio.TimeoutError, RayError) as error:
        logger.warning("%s did not stop cleanly: %s", name, error)
