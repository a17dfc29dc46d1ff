"""`Learner`: the trainer of a run and its checkpoints."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from vime.algorithm.choice import algorithm_of
from vime.cluster.nodes import Nodes
from vime.config import RunConfig
from vime.files.folders import tidy
from vime.processes.spare import Spare
from vime.run_checkpoints import CHECKPOINTS, Checkpoints
from vime.tasks import stop_within
from vime.trainer.group import TrainerGroup

STOP_SECONDS = 30.0
AnyLearner = TypeVar("AnyLearner", bound="Learner")


class Learner:
    """The trainer and its checkpoints. Alone it is the system of supervised training, in which no server waits for weights."""

    usage: Callable[[], Awaitable[Any]] | None = None
    """Asks the servers for their usage (`vime.chat.traffic.ModelUsage`), if there are servers."""

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
        self.algorithm = algorithm_of(config)
        self.trainer = TrainerGroup(config, run_dir, run_id, nodes, spare=spare)
        self.checkpoints = Checkpoints(run_dir / CHECKPOINTS, config.trainer, self.trainer, warn=warn)

    async def start(self) -> None:
        """Waits until the model is loaded; raises what a rank raises meanwhile."""
        self.trainer.start()
        await self.trainer.ready()

    def training(self) -> AbstractAsyncContextManager[TrainerGroup]:
        """The trainer, able to train, and used by no one else within the block."""
        return nullcontext(self.trainer)

    def trained(self, version: int) -> None:
        """Notes that the trainer's weights are now this version."""

    def trainer_awake(self) -> AbstractAsyncContextManager[TrainerGroup]:
        """The trainer, able to work, and used by no one else within the block."""
        return nullcontext(self.trainer)

    async def released(self) -> None:
        """Waits until nothing needs the servers' present weights any more: at once."""

    async def sync(self, version: int) -> dict[str, float]:
        """Does nothing, because there are no servers; returns no metrics."""
        return {}

    async def compared(self) -> dict[str, float]:
        """An empty dictionary: there is no server to compare with the trainer."""
        return {}

    async def metrics(self) -> dict[str, float]:
        """An empty dictionary: without servers there are no server metrics."""
        return {}

    async def events(self) -> list[dict[str, Any]]:
        """An empty list: without servers there are no faults."""
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
