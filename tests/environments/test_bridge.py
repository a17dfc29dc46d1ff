"""An environment in a Python of its own, whose agents call sessions: what is trained, and what is lost with its process."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.environments.test_play import Scripted, played
from vime.config import RunConfig
from vime.environments import steps
from vime.environments.bridge import Bridge
from vime.environments.config import EnvironmentConfig
from vime.environments.environment import NoPlaceError, Outcome, Seat, seats_of
from vime.environments.harness import has_agents, outcome_of, run_harness
from vime.types import Rollout, StopReason

ADDRESS = ("base_url", "anthropic_url", "api_key", "model")
ADAPTER = f"{Path(__file__).with_name('foreign_sums.py')}:Sums"


@pytest.fixture(scope="module")
def bridge() -> Iterator[Bridge]:
    found = Bridge(python=sys.executable, adapter=ADAPTER)
    yield found
    running = processes_of(found)
    assert running
    found.close()
    _, alive = psutil.wait_procs(running, timeout=30)
    assert not alive, "nothing of an environment outlives it"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "WAITING_SECONDS", 0.02)


def processes_of(bridge: Bridge) -> list[psutil.Process]:
    started = [each._process for each in bridge._processes if each._process is not None]
    return [child for each in started for child in [psutil.Process(each.pid), *psutil.Process(each.pid).children(recursive=True)]]


async def summed(tokenizer: Any, bridge: Bridge, replies: list[str], **options: Any) -> Rollout:
    row = {"number": 7, **options.pop("row", {})}
    return await played(tokenizer, bridge, replies, episode=run_harness, row=row, **options)


async def test_each_seat_has_its_own_url_sequence_and_reward(byte_tokenizer: Any, bridge: Bridge):
    assert has_agents(bridge) and seats_of(bridge) == ("one", "two")
    rollout = await summed(byte_tokenizer, bridge, ["6", "7"])
    assert not rollout.error and rollout.stop_reason is StopReason.ANSWERED
    assert [(each.seat, each.reward, each.num_trained_tokens) for each in rollout.samples] == [("one", 0.0, 2), ("two", 1.0, 2)]
    assert rollout.reward == 0.5 and {"reward_one": 0.0, "reward_two": 1.0}.items() <= rollout.metrics.items()
    texts = [byte_tokenizer.decode(each.tokens) for each in rollout.samples]
    assert "a number?" in texts[0] and texts[1].count("6") == 1, "each seat has its own conversation"


async def test_episodes_run_at_the_same_time_and_a_process_that_dies_costs_none(
    byte_tokenizer: Any, bridge: Bridge, tmp_path: Path
):
    before = processes_of(bridge)
    row = {"what": "dies once", "marks": str(tmp_path / "died")}
    rollouts = await asyncio.gather(*(summed(byte_tokenizer, bridge, ["7"] * 8, row=row) for _ in range(6)))
    assert [(each.reward, each.error) for each in rollouts] == [(1.0, "")] * 6
    assert (tmp_path / "died").exists() and set(before).isdisjoint(processes_of(bridge))


async def test_many_episodes_begin_at_once_and_none_ends_the_others(bridge: Bridge):
    before, seats = processes_of(bridge), {name: Seat(**dict.fromkeys(ADDRESS, ""), max_tokens=1) for name in bridge.seats}
    found = await asyncio.gather(*(bridge.run({"what": "asks nothing"}, seats) for _ in range(300)))
    assert found == [0.5] * 300 and set(before) <= set(processes_of(bridge))


async def test_an_environment_that_raises_is_run_again_and_costs_its_rollout_alone(byte_tokenizer: Any, bridge: Bridge):
    rollout = await summed(byte_tokenizer, bridge, ["7"] * 4, row={"what": "raises"})
    assert rollout.stop_reason is StopReason.SANDBOX_CRASHED and "LookupError: the world is gone" in rollout.error


async def test_an_agent_that_is_ended_by_its_limit_has_reward_0_and_is_trained(byte_tokenizer: Any, bridge: Bridge):
    rollout = await summed(byte_tokenizer, bridge, ["7"] * 9, row={"what": "asks on"}, max_turns=3)
    assert rollout.stop_reason is StopReason.TURN_LIMIT and rollout.reward == 0.0
    assert sum(sample.num_trained_tokens for sample in rollout.samples) == 6 and {each.seat for each in rollout.samples} == {
        "one"
    }


async def test_all_processes_have_episodes(byte_tokenizer: Any):
    several = Bridge(python=sys.executable, adapter=ADAPTER, settings={"at_once": 1}, num_processes=3)
    try:
        seats = {name: Seat(**dict.fromkeys(ADDRESS, ""), max_tokens=1) for name in several.seats}
        async with asyncio.timeout(60):
            while not all(each.is_ready for each in several._processes):
                assert several._processes[0].start() is None
                with suppress(NoPlaceError):
                    await several.run({"what": "asks nothing"}, seats)
                await asyncio.sleep(0.05)
        waiting = [asyncio.create_task(several.run({"what": "sleeps"}, seats)) for _ in range(3)]
        await asyncio.sleep(0)
        assert [each.num_open for each in several._processes] == [1, 1, 1]
        with pytest.raises(NoPlaceError, match="each of 3 processes"):
            await several.run({"what": "sleeps"}, seats)
        assert len(set(await asyncio.gather(*waiting))) == 3, "their numbers"
    finally:
        several.close()


async def test_an_opponents_limit_ends_the_episode_as_the_agents_does(byte_tokenizer: Any, bridge: Bridge):
    options: Any = {"models": {"opponent": Scripted(byte_tokenizer, ["7"] * 9, name="opponent")}, "players": {"one": "opponent"}}
    rollout = await summed(byte_tokenizer, bridge, ["7"], row={"what": "two, then one on"}, max_turns=3, **options)
    assert not rollout.error and rollout.stop_reason is StopReason.TURN_LIMIT
    assert [each.seat for each in rollout.samples] == ["two"] and rollout.reward == 0.0
    assert rollout.samples[0].metadata["opponents"] == {"one": {"model": "opponent", "versions": [0]}}


async def test_an_episode_that_is_no_longer_needed_is_cancelled_there(byte_tokenizer: Any, bridge: Bridge, tmp_path: Path):
    marks = tmp_path / "left"
    work = asyncio.create_task(summed(byte_tokenizer, bridge, ["7"] * 2, row={"what": "waits", "marks": str(marks)}))
    async with asyncio.timeout(60):
        while not marks.with_suffix(".begun").exists():
            await asyncio.sleep(0.02)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        while not marks.exists():
            await asyncio.sleep(0.02)


async def test_a_process_that_takes_one_episode_at_a_time_is_ended_with_one_that_hangs(byte_tokenizer: Any, tmp_path: Path):
    single = Bridge(python=sys.executable, adapter=ADAPTER, settings={"at_once": 1}, num_processes=2)
    try:
        rollouts = await asyncio.gather(*(summed(byte_tokenizer, single, ["7"] * 2) for _ in range(5)))
        assert [each.reward for each in rollouts] == [1.0] * 5
        before = processes_of(single)
        row = {"what": "waits", "marks": str(tmp_path / "left")}
        rollout = await summed(byte_tokenizer, single, ["7"] * 2, row=row, rollout={"generate_timeout_seconds": 2.0})
        assert rollout.stop_reason is StopReason.TIME_LIMIT
        ended = sum(not each.is_running() for each in before)
        assert ended or psutil.wait_procs(before, timeout=30)[0]
        assert (await summed(byte_tokenizer, single, ["7"] * 2)).reward == 1.0
    finally:
        single.close()


def test_nothing_outlives_a_worker_that_is_killed():
    script = (
        "import sys, time; from vime.environments.bridge import Bridge\n"
        "bridge = Bridge(python=sys.executable, adapter=sys.argv[1], num_processes=2)\n"
        "list(bridge.rows(split='train', num_items=1, seed=0)); print('ready', flush=True); time.sleep(600)"
    )
    words = [sys.executable, "-c", script, ADAPTER]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None and worker.stdout.readline() == b"ready\n"
        running = psutil.Process(worker.pid).children(recursive=True)
        worker.kill()
    assert len(running) >= 2, "the environment and its supervisor"
    assert not psutil.wait_procs(running, timeout=60)[1]


async def test_a_start_holds_up_no_other_rollout(byte_tokenizer: Any):
    fresh, seen = Bridge(python=sys.executable, adapter=ADAPTER), False
    process = fresh._processes[0]
    try:
        work = asyncio.create_task(summed(byte_tokenizer, fresh, ["7"] * 2))
        while not work.done():
            seen = seen or (process._process is not None and not process.is_ready)
            await asyncio.sleep(0.005)
        assert (await work).reward == 1.0 and seen, "the event loop goes on while the process starts"
    finally:
        fresh.close()


async def test_a_result_that_is_none_names_the_remedy(byte_tokenizer: Any, bridge: Bridge):
    rollout = await summed(byte_tokenizer, bridge, ["7"] * 4, row={"what": "returns", "returned": {"reward": 1}})
    assert rollout.stop_reason is StopReason.SANDBOX_CRASHED and "an outcome has rewards, metrics and end" in rollout.error


@pytest.mark.parametrize(
    ("result", "why"),
    [
        ("1", "rewards and metrics are numbers"),
        (float("nan"), "rewards and metrics are numbers"),
        ({"rewards": {"three": 1.0}}, "the seats are one, two"),
        ({"rewards": 1.0, "end": "sandbox_crashed"}, "use one of answered"),
    ],
)
def test_rewards_are_numbers_of_seats(result: Any, why: str):
    with pytest.raises(ValueError, match=why):
        outcome_of(result, ("one", "two"))


def test_an_outcome_has_three_forms():
    expected = {"one": 0.5, "two": 0.5}
    assert outcome_of(0.5, ("one", "two")).rewards == expected
    assert outcome_of(Outcome(rewards=0.5), ("one", "two")).rewards == expected
    assert outcome_of({"rewards": {"one": 1.0}, "end": "turn_limit"}, ("one", "two")) == Outcome(
        rewards={"one": 1.0, "two": 0.0}, end=StopReason.TURN_LIMIT
    )


def test_rows_are_divided_or_all_are_there(bridge: Bridge):
    train, held_out = (bridge.rows(split=split, num_items=20, seed=3) for split in ("train", "eval"))
    assert len({row["key"] for row in [*train, *held_out]}) == 40
    whole = Bridge(python=sys.executable, adapter=ADAPTER, splits=False)
    try:
        assert [row["number"] for row in whole.rows(split="eval", num_items=5, seed=3)] == [3, 4, 5, 6, 7]
    finally:
        whole.close()


@pytest.mark.parametrize(
    ("settings", "key", "remedy"),
    [
        (
            {"python": "/nowhere/python", "adapter": ADAPTER},
            "method.settings.python",
            "give the path of the environment's Python",
        ),
        ({"python": sys.executable, "adapter": "sums"}, "method.settings.adapter", "use PATH.py:CLASS"),
        ({"python": sys.executable, "adapter": "sums.py:Sums"}, "method.settings.adapter", "there is no file sums.py"),
        ({"python": sys.executable, "adapter": ADAPTER, "settings": {"fails": "today"}}, "method.settings", "no sums: today"),
        ({"python": sys.executable, "adapter": "no_such_module:Sums"}, "method.settings", "No module named 'no_such_module'"),
    ],
)
def test_an_environment_that_cannot_be_made_says_why(settings: Any, key: str, remedy: str):
    (problem,) = EnvironmentConfig(environment="bridge", settings=settings).problems(RunConfig())
    assert problem.key == key and remedy in problem.remedy


async def test_a_process_that_does_not_start_costs_its_rollout_alone(byte_tokenizer: Any):
    failing = Bridge(python=sys.executable, adapter=ADAPTER, settings={"fails": "today"})
    rollout = await summed(byte_tokenizer, failing, ["7"] * 2)
    assert rollout.stop_reason is StopReason.SANDBOX_CRASHED and "no sums: today" in rollout.error
