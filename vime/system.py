"""Everything that runs besides the driver: Ray, the servers, the trainer and the rollout workers, started side by side.

`async with System(...)` guarantees that whatever was started is stopped, also after an error or Ctrl-C.
"""

import asyncio
import logging
import math
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any

import ray
from ray.exceptions import RayError

from vime.checkpoint import Checkpoints
from vime.cluster.nodes import Nodes
from vime.cluster.placement import takes_turns
from vime.config import ModelAPI, RunConfig
from vime.files.folders import tidy
from vime.memory.tokens import object_store_bytes
from vime.processes.reaper import start_reaper
from vime.report.run_directory import RunDirectory
from vime.retrieval.client import NAME as RETRIEVAL
from vime.retrieval.deployment import Retrieval
from vime.rollout.pool import WorkerPool
from vime.serving.topology import Serving
from vime.sync.delivery import WeightDelivery
from vime.sync.turns import Turns
from vime.tasks import cancel, together
from vime.trainer.group import TrainerGroup
from vime.types import TrainSample
from vime.weights.payload import payload_folder

logger = logging.getLogger(__name__)

STOP_TIMEOUT_SECONDS = 30.0


class System:
    """The parts of a run. `serving`, `retrieval`, `workers`, `trainer`, `checkpoints` are None where a run needs none."""

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
        self.nodes = Nodes(config)
        self.serving = Serving(config, run_dir, self.run_id, self.nodes, awaits_weights=with_trainer) if with_servers else None
        asks = with_servers and config.retrieval.is_there
        self.retrieval = Retrieval(config, run_dir, self.run_id, self.nodes) if asks else None
        self.trainer = TrainerGroup(config, run_dir, self.run_id, self.nodes) if with_trainer else None
        self.checkpoints: Checkpoints | None = None
        if self.trainer is not None:
            tidy(run_dir)
            self.checkpoints = Checkpoints(RunDirectory(run_dir).checkpoints, config.trainer, self.trainer, warn=warn)
        self.workers: WorkerPool | None = None
        self._turns: Turns | None = None
        self._delivery: WeightDelivery | None = None
        self._trainer_lock = asyncio.Lock()
        self._version = 0
        self._watching: list[asyncio.Task[None]] = []
        self._broken: BaseException | None = None

    async def __aenter__(self) -> "System":
        try:
            self._start_ray()
            await self._start_parts()
        except BaseException:  # raised again: whatever ended the start, nothing that it started stays
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

    async def train(self, updates: list[list[TrainSample]], step: int) -> dict[str, float]:
        """One batch; see `TrainerGroup.train`. Servers that share the trainer's GPUs sleep until the next sync."""
        assert self.trainer
        async with self._trainer_lock:
            if self._turns is not None:
                await self._turns.to_trainer()
            metrics = await self.trainer.train(updates, step)
            self._version = step + 1
            return metrics

    async def sync_weights(self, version: int) -> dict[str, float]:
        """Brings the trainer's weights to the servers as `version`, and proves it by digest and probe.

        If it reached no server, it waits for one, for `serving.recovery_timeout_seconds`, and begins again. Raises `ServerError`,
        `WeightSyncError` if a server does not hold the weights afterwards, and whatever has ended the watch over the servers.
        """
        assert self._delivery and self.serving
        deadline = math.inf
        while True:
            if self._broken is not None:
                raise self._broken
            self._version = version
            if (metrics := await self._delivery.sync(version))["sync/num_servers"]:
                return metrics
            self._say(f"version {version} of the weights reached no server: waiting for one to come back")
            deadline = min(deadline, time.monotonic() + self._config.serving.recovery_timeout_seconds)
            await self.serving.until_one_is_ready(deadline=deadline)

    async def serving_metrics(self) -> dict[str, float]:
        """`serving/<name>/<metric>` and `retrieval/<metric>`: what was asked since the last call, and what the servers did."""
        assert self.serving and self.workers
        metrics = await self.serving.metrics()
        for name, calls in (await self.workers.calls()).items():
            if name == RETRIEVAL:
                metrics |= {f"{name}/{key}": value for key, value in calls.metrics(is_paid=False).items() if "tokens" not in key}
                continue
            is_paid = self._config.serving.models[name].api is ModelAPI.chat
            metrics |= {f"serving/{name}/{key}": value for key, value in calls.metrics(is_paid=is_paid).items()}
        return metrics

    async def events(self) -> list[dict[str, Any]]:
        """What went wrong with servers, routers and the retrieval service since the last call: {time, server, event, detail}.

        Raises ServerError if the retrieval service was given up.
        """
        assert self.serving
        events = await self.serving.events()
        return [*events, *(await self.retrieval.events() if self.retrieval is not None else [])]

    @asynccontextmanager
    async def trainer_awake(self) -> AsyncIterator[TrainerGroup]:
        """The trainer, able to work also while the GPUs are the servers' (they sleep meanwhile), and used by no one else."""
        assert self.trainer
        async with self._trainer_lock, self._turns.trainer() if self._turns is not None else nullcontext():
            yield self.trainer

    async def stop(self) -> None:
        """Stops every part that was started; one that will not stop does not keep the others from it."""
        await cancel(self._watching)
        for part in (self.workers, self.retrieval, self.serving, self.trainer):
            if part is not None:
                await _stop_within(part.stop(), type(part).__name__)
        if ray.is_initialized():
            self.nodes.release()
        if self._owns_ray:
            ray.shutdown()
        shutil.rmtree(self._ray_dir, ignore_errors=True)
        if self._reaper is not None:
            self._reaper.terminate()
            self._reaper.wait(STOP_TIMEOUT_SECONDS)

    def _start_ray(self) -> None:
        """Starts Ray, or joins the cluster of `cluster.ray_address`; a Ray that this process uses already is left as it is."""
        if ray.is_initialized():
            return
        address = self._config.cluster.ray_address
        self._say(f"joining Ray at {address}" if address else "starting Ray")
        self._owns_ray = True
        self._reaper = start_reaper(owner=os.getpid(), remove=[self._ray_dir, payload_folder(self.run_id)])
        os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's 15 starves trainer and servers on a busy machine
        if address is not None:
            ray.init(address=address, namespace=self.run_id, log_to_driver=False, logging_level=logging.ERROR)
            return
        ray.init(
            address="local",  # not a cluster that happens to run on this machine
            namespace=self.run_id,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            object_store_memory=object_store_bytes(self._config),
            _node_ip_address=self._config.cluster.host,
            _temp_dir=str(self._ray_dir),
        )

    async def _start_parts(self) -> None:
        """Everything side by side; but servers that share GPUs with the trainer first, since they measure what is free."""
        self.nodes.reserve()
        starts: list[Awaitable[object]] = []
        if self.serving is not None:
            self.serving.start()
            starts.append(self.serving.ready(self._say))
            if self.retrieval is not None:
                self.retrieval.start()
                starts.append(self.retrieval.ready(self._say))
            asked = self.retrieval.address() if self.retrieval is not None else None
            self.workers = WorkerPool(self._config, self.serving.endpoints(), self.nodes, retrieval=asked)
            starts.append(self.workers.start())
        if self.serving is not None and self.trainer is not None and takes_turns(self._config):
            await together(starts)
            starts = []
            await self.serving.sleep(keep_weights=False)
        if self.trainer is not None:
            self.trainer.start()
            starts.append(self.trainer.ready())
        await together(starts)
        if self.serving is not None:
            self._watch(self.serving.watch())
        if self.retrieval is not None:
            self._watch(self.retrieval.watch())
        if self.serving is not None and self.trainer is not None:
            self._connect(self.serving, self.trainer)
            self._say("bringing the trainer's weights to the servers")

    def _connect(self, serving: Serving, trainer: TrainerGroup) -> None:
        """Opens the way of the weights, and watches for servers that need them out of turn."""
        turns, lock = Turns(serving, trainer, shared=takes_turns(self._config)), self._trainer_lock
        self._delivery = WeightDelivery(self._config, serving, trainer, run_id=self.run_id, turns=turns, lock=lock)
        self._turns = turns
        for name in serving.actors(serving.trained_endpoint().name):
            self._watch(self._delivery.restore(name, version=lambda: self._version, trainer_awake=self.trainer_awake))

    def _watch(self, watching: Coroutine[Any, Any, None]) -> None:
        """Keeps something running beside the loop; should it fail, the next sync says so."""

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                logger.error("what watches over the servers has failed", exc_info=error)
                self._broken = self._broken or error

        self._watching.append(asyncio.create_task(watching))
        self._watching[-1].add_done_callback(ended)


async def _stop_within(stopping: Awaitable[None], name: str) -> None:
    try:
        await asyncio.wait_for(stopping, STOP_TIMEOUT_SECONDS)
    except (asyncio.TimeoutError, RayError) as error:
        logger.warning("%s did not stop cleanly: %s", name, error)
