"""The agent's time: what stops it, and that a stopped clock ends no rollout."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from vime.chat import agent_clock
from vime.chat.agent_clock import AgentClock
from vime.chat.served_model import Listening
from vime.chat.traffic import Traffic
from vime.rollout.within import HookTimeout, within
from vime.trajectory.trajectory import CallPrompt, Trajectory
from vime.types import Turn


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, to be set."""
    found = [100.0]
    monkeypatch.setattr(agent_clock, "time", SimpleNamespace(monotonic=lambda: found[0]))
    return found


def test_of_parallel_waits_the_time_is_taken_off_once_inside_and_outside(now: list[float]):
    worker = AgentClock()
    first, second = AgentClock(worker), AgentClock(worker)
    now[0] += 1
    first.stop()
    now[0] += 10
    first.stop()
    second.stop()
    now[0] += 10
    first.go()
    second.go()
    now[0] += 10
    assert (first.seconds, second.seconds, worker.seconds) == (1, 21, 1)
    first.go()
    now[0] += 2
    assert (first.seconds, second.seconds, worker.seconds) == (3, 23, 3)


def test_a_call_stops_the_clock_from_when_its_server_is_lost_until_tokens_come(now: list[float]):
    clock, trajectory = AgentClock(), Trajectory()
    held = trajectory.begin(CallPrompt.behind(None, [1]), model="actor")
    call, other = Listening(held, clock, None, None), Listening(held, clock, None, None)
    call.received(Turn(output_ids=[5], logprobs=[-0.5], weight_versions=[3]))
    now[0] += 1
    call.lost()
    other.lost()
    call.lost()
    now[0] += 100
    other.ended()
    now[0] += 100
    call.received(Turn(output_ids=[6], logprobs=[-0.25], weight_versions=[4]))
    now[0] += 2
    call.ended()
    assert clock.seconds == 3
    assert (held.turn.output_ids, held.turn.logprobs, held.turn.weight_versions) == ([5, 6], [-0.5, -0.25], [3, 4])


async def test_the_clock_stands_at_a_closed_gate_and_while_weights_come_to_a_call_in_flight(now: list[float]):
    traffic, clock, in_a_tool, done = Traffic(), AgentClock(), AgentClock(), asyncio.Event()

    async def call() -> None:
        async with traffic.call(clock):
            await done.wait()

    assert await traffic.hold(1.0)
    assert traffic.is_paused()
    calls = [asyncio.create_task(call()) for _ in range(2)]
    await asyncio.sleep(0)
    now[0] += 10
    traffic.release()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    now[0] += 1
    traffic.expect_weights(True)
    assert traffic.is_paused()
    calls.append(asyncio.create_task(call()))  # one that begins meanwhile
    await asyncio.sleep(0)
    now[0] += 10
    traffic.expect_weights(False)
    now[0] += 2
    traffic.expect_weights(True)
    done.set()
    await asyncio.gather(*calls)
    now[0] += 4
    traffic.expect_weights(False)
    assert (clock.seconds, in_a_tool.seconds) == (7, 27) and not traffic.is_paused()


async def test_a_limit_by_a_clock_that_stands_is_not_reached_and_by_one_that_goes_it_is():
    clock = AgentClock()
    clock.stop()

    async def slow() -> str:
        await asyncio.sleep(0.3)
        return "done"

    async def hanging() -> Any:
        await asyncio.sleep(3600)

    assert await within(slow(), 0.01, clock=clock) == "done"
    task = asyncio.create_task(within(hanging(), 0.01, clock=clock))
    await asyncio.sleep(0.2)
    assert not task.done()
    clock.go()
    with pytest.raises(HookTimeout):
        await task
