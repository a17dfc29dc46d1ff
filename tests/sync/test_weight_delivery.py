"""Weights for a restarted server, when something goes wrong on the way; that they arrive, `test_direct_sync.py` shows."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayActorError

from vime.errors import ServerError
from vime.sync import file_sync
from vime.sync.file_sync import give
from vime.weights.payload import WeightPayload
from vime.weights.policy import Policy


class Parts:
    """A trainer whose export fails at first, and a server's actor with scripted answers."""

    def __init__(self, *, failures: int = 0, answer: BaseException | None = None) -> None:
        self.failures, self.answer = failures, answer
        self.sent: list[int] = []
        self.policy = Policy(trained_version=3)

    @asynccontextmanager
    async def awake(self) -> AsyncIterator[Any]:
        yield self

    async def export_weights(self, version: int, *, is_whole: bool = False) -> WeightPayload:
        if self.failures:
            self.failures -= 1
            self.policy.trained_version += 1
            raise OSError("No space left on device")
        return WeightPayload(version=version)

    async def sync(self, payload: WeightPayload) -> None:
        self.sent.append(payload.version)
        if self.answer is not None:
            raise self.answer

    async def give(self) -> None:
        actor = SimpleNamespace(sync=SimpleNamespace(remote=self.sync))
        await give(actor, "actor-0", self.policy, trainer_awake=self.awake)


@pytest.fixture(autouse=True)
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_sync, "RETRY_SECONDS", 0.0)


async def test_an_export_that_fails_is_tried_again_with_the_version_of_then():
    parts = Parts(failures=2)
    await parts.give()
    assert parts.sent == [5]


async def test_a_server_that_was_given_up_is_asked_once():
    parts = Parts(answer=ServerError("given up"))
    await parts.give()
    assert parts.sent == [3]


async def test_an_actor_that_is_gone_leaves_the_rest_to_its_successor():
    with pytest.raises(RayActorError):
        await Parts(answer=RayActorError()).give()
