"""Places of adapters on the servers: shared by requests of the same adapter, exchanged only while none uses them."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vime.config import RunConfig, ServiceConfig
from vime.errors import BadRequestError, ServerError
from vime.service import places as module
from vime.service.places import Places
from vime.serving.endpoint import Endpoint
from vime.weights.policy import Policy

ENDPOINT = Endpoint(
    name="actor", url="http://none", worker_urls=("http://none",), model="m", tokenizer="t", max_model_len=64, trained=True
)


class Sent:
    """In place of trainer and servers: what was sent to which place."""

    def __init__(self) -> None:
        self.log: list[tuple[str, str]] = []
        self.fails = False

    async def export_saved(self, saved: Path, *, name: str, version: int) -> Any:
        return SimpleNamespace(place=name, saved=str(saved), version=version)

    async def send(self, payload: Any) -> None:
        await asyncio.sleep(0)
        if self.fails:
            raise ServerError("no server")
        self.log.append((payload.place, payload.saved))


def places_of(sent: Sent, monkeypatch: pytest.MonkeyPatch, *, number: int) -> Places:
    monkeypatch.setattr(module, "FileSync", lambda *_: sent)
    serving: Any = SimpleNamespace(trained_endpoint=lambda: ENDPOINT)
    trainer: Any = sent
    monkeypatch.setattr(Path, "exists", lambda path: str(path) != "gone")
    config = RunConfig(service=ServiceConfig(num_samplers=number))
    config.trainer.lora.rank = 8
    return Places(config, serving, trainer, Policy())


async def use(places: Places, key: str) -> int:
    async with places.held(key, Path(key)) as (_, version):
        await asyncio.sleep(0)
        return version


async def test_an_adapter_is_sent_once_for_many_requests(monkeypatch: pytest.MonkeyPatch):
    sent = Sent()
    places = places_of(sent, monkeypatch, number=2)
    versions = await asyncio.gather(*[use(places, key) for key in "abababab"])
    assert sorted(key for _, key in sent.log) == ["a", "b"]
    assert len(set(versions)) == 2
    await use(places, "a")
    await use(places, "c")  # takes the place of b, which was not used for longest
    await use(places, "a")
    assert [key for _, key in sent.log[2:]] == ["c"]
    await use(places, "b")
    assert [key for _, key in sent.log[2:]] == ["c", "b"]


async def test_no_adapter_is_exchanged_while_a_request_uses_it(monkeypatch: pytest.MonkeyPatch):
    sent = Sent()
    places = places_of(sent, monkeypatch, number=1)
    async with places.held("a", Path("a")):
        other = asyncio.create_task(use(places, "b"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert sent.log == [("place0", "a")] and not other.done()
    await other
    assert sent.log == [("place0", "a"), ("place0", "b")]


async def test_a_failed_exchange_leaves_the_place_to_the_next(monkeypatch: pytest.MonkeyPatch):
    sent = Sent()
    places = places_of(sent, monkeypatch, number=1)
    sent.fails = True
    with pytest.raises(ServerError):
        await use(places, "a")
    sent.fails = False
    await use(places, "b")
    await use(places, "a")
    assert [key for _, key in sent.log] == ["b", "a"]


async def test_weights_that_were_removed_are_said_to_be_gone(monkeypatch: pytest.MonkeyPatch):
    places = places_of(Sent(), monkeypatch, number=1)
    with pytest.raises(BadRequestError, match="are gone"):
        await use(places, "gone")


async def test_a_newer_version_goes_to_the_place_that_holds_the_adapter(monkeypatch: pytest.MonkeyPatch):
    sent = Sent()
    places = places_of(sent, monkeypatch, number=2)
    await places.renew("a", Path("a"))
    assert sent.log == []  # no server holds it
    async with places.held("a", Path("a")) as (_, version):
        await places.renew("a", Path("a2"))
        assert sent.log == [("place0", "a"), ("place0", "a2")]
    assert await use(places, "a") > version
    await places.forget("a")
    await use(places, "a")
    assert [key for _, key in sent.log] == ["a", "a2", "a"]
