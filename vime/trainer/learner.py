"""`Learner`: a trained policy of a run, its checkpoints, and the trainer that it has alone or with others."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from vime.algorithm.choice import algorithm_of, critic_of
from vime.config import RunConfig
from vime.files.folders import tidy
from vime.run_checkpoints import CHECKPOINTS, Checkpoints
from vime.trainer.group import TrainerGroup

AnyLearner = TypeVar("AnyLearner", bound="Learner")


class Learner:
    """The trainer and its checkpoints. Alone it is the system of supervised training, in which no server waits for weights."""

    usage: Callable[[], Awaitable[Any]] | None = None
    """Asks the servers for their usage (`vime.chat.traffic.ModelUsage`), if there are servers."""

    def __init__(self, config: RunConfig, run_dir: Path, trainer: TrainerGroup, *, warn: Callable[[str], None]) -> None:
        tidy(run_dir)
        self.algorithm, self.critic, self.trainer = algorithm_of(config), critic_of(config), trainer
        self.checkpoints = Checkpoints(run_dir / CHECKPOINTS, config.trainer, trainer, warn=warn)

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
        """Completes the save that is under way."""
        await self.checkpoints.close(failed=error is not None)
