"""A sync that reaches no server waits for one and begins again, or ends the run with the cause; `tools/faults.py` runs it."""

import asyncio
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vime.errors import ServerError
from vime.preflight.compose import compose_run
from vime.serving.topology import Serving
from vime.sync.past_versions import PastVersions
from vime.system import Training
from vime.tasks import Watches
from vime.weights.policy import Policy


class Delivery:
    """Reaches a scripted number of servers at each sync."""

    def __init__(self, *reached: int) -> None:
        self.reached = list(reached)
        self.versions: list[int] = []

    async def sync(self, version: int) -> dict[str, float]:
        self.versions.append(version)
        return {"sync/num_servers": float(self.reached.pop(0))}


class Servers:
    """Come back at once, or not at all."""

    def __init__(self, *, error: Exception | None = None) -> None:
        self.error, self.deadlines = error, []

    async def until_one_is_ready(self, *, deadline: float) -> None:
        self.deadlines.append(deadline)
        if self.error is not None:
            raise self.error


def system_of(delivery: Any, servers: Any, folder: Path) -> tuple[Training, list[str]]:
    """A system without its parts, and what it says."""
    said: list[str] = []
    config = compose_run(["+method=memagent", "serving.recovery_timeout_seconds=100"]).config
    workers = SimpleNamespace(usage=None, expecting_weights=nullcontext)
    agents: Any = SimpleNamespace(serving=servers, workers=workers, watches=Watches())
    system = Training.__new__(Training)
    system.agents, system._config, system._say, system._delivery = agents, config, said.append, delivery
    fleet: Any = SimpleNamespace(steady=asyncio.Lock())
    system.policy, system.fleet = Policy(), fleet
    unused: Any = SimpleNamespace()
    system._past_versions = PastVersions(config, folder, servers, unused, system.policy)
    return system, said


async def test_a_sync_that_reached_no_server_is_made_again_when_one_is_back(tmp_path: Path):
    delivery, servers = Delivery(0, 0, 2), Servers()
    system, said = system_of(delivery, servers, tmp_path)
    assert await system.sync(3) == {"sync/num_servers": 2.0}
    assert delivery.versions == [3, 3, 3]
    assert len(said) == 2 and "version 3" in said[0] and "no server" in said[0]
    assert len(set(servers.deadlines)) == 1, "the time runs from the first sync that reached none"
    assert servers.deadlines[0] <= time.monotonic() + 100


async def test_a_sync_that_reached_some_servers_goes_on(tmp_path: Path):
    system, said = system_of(Delivery(1), Servers(error=AssertionError("nothing to wait for")), tmp_path)
    assert await system.sync(1) == {"sync/num_servers": 1.0}
    assert said == []


async def test_the_run_ends_with_the_cause_if_no_server_comes_back(tmp_path: Path):
    system, _ = system_of(Delivery(0), Servers(error=ServerError("actor-0: died (exit code 137)")), tmp_path)
    with pytest.raises(ServerError, match="exit code 137"):
        await system.sync(1)


async def test_a_failed_watch_over_the_servers_ends_the_wait(tmp_path: Path):
    class Watched(Servers):
        async def until_one_is_ready(self, *, deadline: float) -> None:
            system.agents.watches._error = RuntimeError("Ray is gone")

    system, _ = system_of(Delivery(0, 0), Watched(), tmp_path)
    with pytest.raises(RuntimeError, match="Ray is gone"):
        await system.sync(1)


class Stack(Serving):
    """Servers that give scripted answers, one after the other."""

    def __init__(self, **answers: list[Any]) -> None:
        self.answers = answers

    def trained_endpoint(self, *, only: Any = None) -> Any:
        return SimpleNamespace(name="actor")

    def actors(self, name: str) -> dict[str, Any]:
        async def trouble(own: list[Any]) -> str:
            answer = own.pop(0) if len(own) > 1 else own[0]
            if isinstance(answer, Exception):
                raise answer
            return answer

        return {
            server: SimpleNamespace(trouble=SimpleNamespace(remote=lambda own=own: trouble(own)))
            for server, own in self.answers.items()
        }


async def test_one_server_that_is_ready_is_enough():
    await Stack(first=["died (exit code 137)"], second=["it is starting", ""]).until_one_is_ready(deadline=time.monotonic() + 60)


async def test_what_happened_to_each_server_is_the_cause():
    stack = Stack(first=["died (exit code 137)"], second=["hung (5 health checks in a row failed)"])
    with pytest.raises(ServerError, match=r"first: died \(exit code 137\); second: hung"):
        await stack.until_one_is_ready(deadline=time.monotonic() - 1)


async def test_a_server_that_was_given_up_ends_the_wait_at_once():
    with pytest.raises(ServerError, match="was given up"):
        await Stack(first=[ServerError("first was given up")]).until_one_is_ready(deadline=time.monotonic() + 600)
