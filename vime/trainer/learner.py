"""`Learner`: the trainer of a run and its checkpoints."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import numpy as np

from vime.checkpoint import CHECKPOINTS, Checkpoints
from vime.cluster.nodes import Nodes
from vime.config import RunConfig
from vime.files.folders import tidy
from vime.processes.spare import Spare
from vime.tasks import stop_within
from vime.trainer.group import TrainerGroup
from vime.types import TrainSample

STOP_SECONDS = 30.0
AnyLearner = TypeVar("AnyLearner", bound="Learner")


class Learner:
    """The trainer and its checkpoints. Alone it is the system of supervised training, in which no server waits for weights."""

    usage: Callable[[], Awaitable[Any]] | None = None
    """Asks for what the servers did (`vime.chat.traffic.ModelUsage`), where there are servers."""

    def __init__(
        self,
        config: RunConfig,
        run_dir: Path,
        run_id: str,
        nodes: Nodes,
        *,
        warn: Callable[[str], None],
        spare: Spare | None = None,
    ) -> None:
        tidy(run_dir)
        self.trainer = TrainerGroup(config, run_dir, run_id, nodes, spare=spare)
        self.checkpoints = Checkpoints(run_dir / CHECKPOINTS, config.trainer, self.trainer, warn=warn)

    async def start(self) -> None:
        """Waits until the model is loaded; raises what a rank raises meanwhile."""
        self.trainer.start()
        await self.trainer.ready()

    async def begin_training(self, updates: list[list[TrainSample]], step: int) -> None:
        """The first gradient of a batch; see `TrainerGroup.begin_training`."""
        await self.trainer.begin_training(updates, step)

    async def finish_training(self, step: int) -> dict[str, float]:
        """The optimizer steps of the batch that was begun; see `TrainerGroup.finish_training`."""
        return await self.trainer.finish_training()

    async def trained_logprobs(self, updates: list[list[TrainSample]]) -> dict[int, np.ndarray]:
        """The trainer's logprobs of the trained tokens of the batch that was trained last, by the `id()` of a sample's tokens."""
        found = await self.trainer.trained_logprobs()
        updates = [samples for samples in updates if samples]
        return {id(updates[update][place].tokens): values for (update, place), values in found.items()}

    def trainer_awake(self) -> AbstractAsyncContextManager[TrainerGroup]:
        """The trainer, able to work, and used by no one else within the block."""
        return nullcontext(self.trainer)

    async def released(self) -> None:
        """Waits until nothing needs the servers' present weights any more: at once."""

    async def sync(self, version: int) -> dict[str, float]:
        """Brings the weights to no server."""
        return {}

    async def compared(self) -> dict[str, float]:
        """There is no server to compare with the trainer."""
        return {}

    async def metrics(self) -> dict[str, float]:
        """No server has any."""
        return {}

    async def events(self) -> list[dict[str, Any]]:
        """Nothing goes wrong with no server."""
        return []

    async def __aenter__(self: AnyLearner) -> AnyLearner:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Completes the save that is under way, and ends the ranks."""
        try:
            await self.checkpoints.close(failed=error is not None)
        finally:
            await stop_within(self.trainer, seconds=STOP_SECONDS)
