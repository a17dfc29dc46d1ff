"""Earlier versions of the trained model on real servers: the pool, the draw, a server that comes back, and a resumed run."""

import errno
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.serving.test_server import collect_until, program_of
from vime.config import PastVersionsConfig
from vime.serving.client import TokenClient
from vime.sync.past_versions import FOLDER, PastVersions
from vime.weights.payload import WeightPayload
from vime.weights.policy import Policy

EVERY, POOL_SIZE = 2, 3


def pool(folder: Path) -> list[int]:
    return sorted(int(each.name) for each in (folder / FOLDER / "actor").iterdir())


def of_opponents(config: Any) -> Any:
    """The configuration with the served model `actor` as an opponent."""
    past = PastVersionsConfig(every=EVERY, pool_size=POOL_SIZE)
    actor = replace(config.serving.models["actor"], past_versions=past)
    return replace(config, serving=replace(config.serving, models={"actor": actor}))


class Present:
    """Stand-in for the trainer and its turns: a payload of each version."""

    def __init__(self, export: Any) -> None:
        self.export = export

    async def export_weights(self, version: int, *, is_whole: bool) -> WeightPayload:
        assert is_whole
        return self.export(version)

    @asynccontextmanager
    async def awake(self) -> AsyncIterator[Any]:
        yield self


async def sampled(stack: Any) -> tuple[list[float], set[int]]:
    client = TokenClient(stack.endpoint, stack.config.serving)
    about: dict[str, Any] = {"session_id": "s", "request_id": "past"}
    turn = await client.generate([1, 2, 3], sampling={"max_tokens": 6, "ignore_eos": True, "temperature": 0.0}, **about)
    await client.close()
    return list(turn.logprobs), set(map(int, turn.weight_versions))


async def test_servers_have_a_version_of_the_pool_also_after_they_were_killed(
    served: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    stack = served["tied"]
    monkeypatch.setitem(stack.serving.policies, "actor", Policy())
    present: Any = Present(lambda version: replace(stack.trainer.export(), version=version))
    past = PastVersions(of_opponents(stack.config), tmp_path, stack.serving, present, Policy())
    known: dict[int, list[float]] = {}
    drawn, order = -1, list[int]()
    for version in range(4 * EVERY):
        stack.trainer.step()
        if version % EVERY == 0:
            await stack.sync(stack.trainer.export())
            known[version], _ = await sampled(stack)
        metrics = await past.follow(version)
        if version % EVERY == 0:
            drawn = int(metrics["serving/actor/version"])
            order.append(drawn)
            logprobs, versions = await sampled(stack)
            assert versions == {drawn} and logprobs == pytest.approx(known[drawn], abs=1e-5)
            assert set(pool(tmp_path)) >= set(range(0, version + 1, EVERY)[-POOL_SIZE:])
        assert metrics == {"serving/actor/version": drawn}
    assert len(pool(tmp_path)) <= POOL_SIZE + 1 and len({tuple(each) for each in known.values()}) == len(known)
    assert any(later < earlier for earlier, later in pairwise(order)), "the draw never went back"
    await stack.serving.events()
    (await program_of(stack.serving.actors("actor")["actor-0"])).kill()
    await collect_until(stack, "recovered")
    logprobs, versions = await sampled(stack)
    assert versions == {drawn} and logprobs == pytest.approx(known[drawn], abs=1e-5)

    again = PastVersions(of_opponents(stack.config), tmp_path, stack.serving, present, Policy())
    until = 2 * EVERY + 1  # a run that goes on from there draws nothing that came later
    assert (await again.follow(until))["serving/actor/version"] <= until
    stack.trainer.step()
    await stack.sync(stack.trainer.export())
    await stack.probe()


async def test_a_copy_that_fails_leaves_the_pool_as_it_is_and_is_an_error_only_without_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file = tmp_path / "weights.safetensors"
    file.write_bytes(b"weights")
    exported: Any = Present(lambda version: WeightPayload(version=version, files=[str(file)]))
    settings = SimpleNamespace(past_versions=PastVersionsConfig(every=1, pool_size=POOL_SIZE))
    config: Any = SimpleNamespace(seed=0, serving=SimpleNamespace(models={"actor": settings}))
    sent: list[str] = []

    async def send(_: PastVersions, name: str, kept: Path) -> None:
        sent.append(kept.name)

    def is_full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(PastVersions, "_send", send)
    past = PastVersions(config, tmp_path, exported, exported, Policy())
    with monkeypatch.context() as full:
        full.setattr(shutil, "copyfile", is_full)
        with pytest.raises(OSError, match="No space left"):
            await past.follow(0)
    await past.follow(0)
    with monkeypatch.context() as full:
        full.setattr(shutil, "copyfile", is_full)
        await past.follow(1)
    assert pool(tmp_path) == [0] and set(sent) == {"0"}
    await past.follow(2)
    assert pool(tmp_path) == [0, 2]
