"""The pool on real Ray: a worker that dies or hangs is replaced, its groups are run, and cancelled work ends in it."""

import asyncio
import os
import signal
import struct
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from vime.cluster.nodes import Nodes
from vime.config import MethodConfig, RolloutConfig, RunConfig
from vime.processes.spare import Spare
from vime.types import Prompt, Sample, StopReason
from vime.workers import pool as pool_module
from vime.workers.group_run import Resampled
from vime.workers.pool import WorkerPool
from vime.workers.ray_worker import RayWorker

pytestmark = [pytest.mark.usefixtures("ray_cluster"), pytest.mark.asyncio(loop_scope="module")]

CALLS: list[asyncio.Task[None]] = []
"""Objects that a user's code keeps in its module."""


async def generate(context: Any, sample: Sample, sampling: Any) -> Sample:
    """Does what the prompt says; marks are files, so that a second worker knows what the first has done."""
    assert isinstance(sample.prompt, list)
    word, marks = sample.prompt[0]["content"], Path(sample.metadata["marks"])
    first = not (marks / word).exists()
    (marks / word).touch()
    if word == "die" and first:
        os._exit(1)
    if word == "deadly":
        await asyncio.sleep(0.2)
        os._exit(1)
    if word == "slow":
        await asyncio.sleep(0.5)
    if word == "spin" and first:
        while True:
            pass
    if word == "sleep" and first:
        time.sleep(600)
    if word == "wait":
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            (marks / "cancelled").touch()
            raise
    if word == "tool":
        (marks / f"ran_{sample.member}").open("a").write("x")
        while sample.member == 1 and not (marks / "done").exists():
            await asyncio.sleep(0.01)
    if word == "halfway":
        member = sample.member
        (marks / f"ran_{member}").open("a").write("x")
        if member == 1 and not (marks / "died").exists():
            while not (marks / "told").exists():
                await asyncio.sleep(0.01)
            (marks / "died").touch()
            os._exit(1)
    done = Sample(tokens=[1, 2], response_length=1, loss_mask=[1], rollout_log_probs=[-0.5], weight_versions=[0])
    if word in ("count", "leave a task"):
        CALLS.append(asyncio.create_task(asyncio.sleep(600 if word == "leave a task" else 0)))
        done.metadata = {"num_calls": len(CALLS), "pid": os.getpid(), "seconds": context.config.rollout.generate_timeout_seconds}
    if word == "lock":
        done.metadata = {"client": threading.Lock()}
    return done


async def reward(context: Any, samples: list[Sample]) -> float:
    return 1.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool(ray_cluster: None) -> AsyncIterator[WorkerPool]:
    """One pool of one worker; each test leaves it with a good one."""
    look_seconds, pool_module.LOOK_SECONDS = pool_module.LOOK_SECONDS, 0.2
    method = MethodConfig(name="m", generate=f"{__file__}:generate", reward=f"{__file__}:reward")
    limits = RolloutConfig(max_blocked_seconds=1.0, generate_timeout_seconds=60.0, max_retries=0)
    config = RunConfig(method=method, rollout=limits)
    nodes = Nodes(config)
    nodes.reserve()
    pool = WorkerPool(config, {}, nodes)
    await asyncio.wait_for(pool.start(), 100)
    yield pool
    await pool.stop()
    pool_module.LOOK_SECONDS = look_seconds


async def run(pool: WorkerPool, word: str, marks: Path, slot: int = 0) -> list[StopReason]:
    prompt = Prompt(
        index=slot, row=0, messages=[{"role": "user", "content": word}], ground_truth=[], metadata={"marks": str(marks)}
    )
    group = await asyncio.wait_for(pool.run_group(prompt=prompt, slot=slot, num_rollouts=2, version=0), 100)
    return [rollout.stop_reason for rollout in group.rollouts]


async def until(condition: Any) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it never happened")


@pytest.mark.parametrize("word", ["die", "sleep"])
async def test_a_worker_that_dies_or_cannot_be_woken_is_replaced_and_all_its_groups_are_run(
    pool: WorkerPool, tmp_path: Path, word: str
):
    groups = await asyncio.gather(run(pool, "quick", tmp_path), run(pool, word, tmp_path, slot=1))
    assert groups == [[StopReason.ANSWERED] * 2] * 2


async def test_a_prompt_that_kills_every_worker_costs_its_own_group_alone(pool: WorkerPool, tmp_path: Path):
    words = ["slow", "deadly", "slow", "slow"]
    groups = await asyncio.gather(*[run(pool, word, tmp_path, slot=slot) for slot, word in enumerate(words)])
    assert groups == [[StopReason.WORKER_LOST if word == "deadly" else StopReason.ANSWERED] * 2 for word in words]
    assert [station.work for station in pool._dispatcher.stations()] == [set()]


async def test_of_a_group_that_loses_its_worker_the_rollouts_that_had_ended_are_kept(pool: WorkerPool, tmp_path: Path):
    running = asyncio.create_task(run(pool, "halfway", tmp_path))
    await until(lambda: any(work.heard for station in pool._dispatcher.stations() for work in station.work))
    (tmp_path / "told").touch()
    assert await running == [StopReason.ANSWERED] * 2
    assert [(tmp_path / f"ran_{member}").read_text() for member in (0, 1)] == ["x", "xx"]


async def test_stale_rollouts_are_sampled_again_and_what_is_known_of_them_is_forgotten(pool: WorkerPool, tmp_path: Path):
    running = asyncio.create_task(run(pool, "tool", tmp_path, slot=4))
    await until(lambda: any(work.heard for station in pool._dispatcher.stations() for work in station.work))
    found = pool._dispatcher.find("run_group", slot=4)
    assert found is not None
    assert await pool.resample(slot=5, oldest=1, version=1) is None
    assert await pool.resample(slot=4, oldest=1, version=1) == Resampled(version=1, members=(0,))
    assert found[1].heard == {} and found[1].arguments["version"] == 1
    await until(lambda: found[1].heard)
    (tmp_path / "done").touch()
    assert await running == [StopReason.ANSWERED] * 2
    assert [(tmp_path / f"ran_{member}").read_text() for member in (0, 1)] == ["xx", "x"]
    assert await pool.resample(slot=4, oldest=1, version=1) is None


class Nothing:
    """An actor that does nothing."""

    def __init__(self, *, black_box: Path) -> None:
        black_box.parent.mkdir(parents=True, exist_ok=True)
        black_box.write_bytes(struct.pack("q", 7))

    async def ready(self) -> None: ...


async def test_the_machine_of_a_worker_is_asked_whose_code_it_died_in(pool: WorkerPool, monkeypatch: pytest.MonkeyPatch):
    here = NodeAffinitySchedulingStrategy(node_id=ray.get_runtime_context().get_node_id(), soft=False)
    worker = RayWorker(Nothing, {"num_cpus": 0, "scheduling_strategy": here})
    await worker.started()
    worker.kill()
    monkeypatch.setattr(Path, "exists", lambda path: False)  # as if the file were another machine's
    assert await worker.culprit() == 7
    monkeypatch.undo()
    assert await worker.culprit() == 7
    worker.forget()
    assert await worker.culprit() == 0


async def test_rollouts_that_cannot_be_handed_over_have_failed(pool: WorkerPool, tmp_path: Path):
    assert await run(pool, "lock", tmp_path) == [StopReason.GENERATE_RAISED] * 2
    assert await run(pool, "quick", tmp_path) == [StopReason.ANSWERED] * 2


async def test_a_hook_that_spins_costs_one_rollout_and_no_worker(pool: WorkerPool, tmp_path: Path):
    worker = pool._dispatcher.stations()[0].worker
    groups = await asyncio.gather(run(pool, "spin", tmp_path), run(pool, "quick", tmp_path, slot=1))
    assert sorted(reason.value for reason in groups[0]) == ["answered", "generate_raised"]
    assert groups[1] == [StopReason.ANSWERED] * 2 and pool._dispatcher.stations()[0].worker is worker


async def test_cancelled_work_ends_in_the_worker(pool: WorkerPool, tmp_path: Path):
    running = asyncio.create_task(run(pool, "wait", tmp_path))
    await until((tmp_path / "wait").exists)
    running.cancel()
    await until((tmp_path / "cancelled").exists)
    assert await run(pool, "quick", tmp_path, slot=1) == [StopReason.ANSWERED] * 2
    await until(lambda: not pool._dispatcher.stations()[0].work)


async def test_a_worker_in_which_nothing_ends_any_more_is_replaced(pool: WorkerPool, tmp_path: Path):
    pool._stuck_seconds = 0.5
    worker = pool._dispatcher.stations()[0].worker
    running = asyncio.create_task(run(pool, "wait", tmp_path))
    await until(lambda: pool._dispatcher.stations()[0].worker is not worker)
    running.cancel()


async def counted(tmp_path: Path, spare: Spare, word: str, seconds: float) -> list[dict[str, Any]]:
    """Samples of two rollouts of a run with a time limit of `seconds`; its worker may be one that an earlier run has left."""
    method = MethodConfig(name="m", generate=f"{__file__}:generate", reward=f"{__file__}:reward")
    config = RunConfig(method=method, rollout=RolloutConfig(generate_timeout_seconds=seconds), output_dir=str(tmp_path))
    nodes = Nodes(config)
    nodes.reserve()
    pool = WorkerPool(config, {}, nodes, spare=spare)
    try:
        await asyncio.wait_for(pool.start(), 100)
        messages = [{"role": "user", "content": word}]
        prompt = Prompt(index=0, row=0, messages=messages, ground_truth=[], metadata={"marks": str(tmp_path)})
        group = await asyncio.wait_for(pool.run_group(prompt=prompt, slot=0, num_rollouts=2, version=0), 100)
        return [rollout.samples[0].metadata for rollout in group.rollouts]
    finally:
        await pool.stop()
        nodes.release()


async def test_the_worker_of_an_ended_run_takes_part_in_the_next_as_a_new_one_would(tmp_path: Path):
    spare = Spare(keeps=True)
    found = [await counted(tmp_path / str(n), spare, "count", seconds=60.0 + n) for n in range(2)]
    await spare.end()
    other = await counted(tmp_path / "2", spare, "count", seconds=62.0)
    await spare.end()
    first, again = ({said["pid"] for said in run} for run in found)
    assert len(first) == 1 and first == again != {said["pid"] for said in other}
    for n, run in enumerate([*found, other]):
        assert sorted(said["num_calls"] for said in run) == [1, 2] and {said["seconds"] for said in run} == {60.0 + n}


async def test_a_worker_in_which_an_agent_is_still_at_work_ends_with_its_run(tmp_path: Path):
    spare = Spare(keeps=True)
    found = [await counted(tmp_path / word, spare, word, seconds=60.0) for word in ("leave a task", "count")]
    await spare.end()
    first, again = ({said["pid"] for said in run} for run in found)
    assert first != again


async def test_a_worker_that_has_died_since_is_replaced(tmp_path: Path):
    spare = Spare(keeps=True)
    (pid,) = {said["pid"] for said in await counted(tmp_path / "0", spare, "count", seconds=60.0)}
    os.kill(pid, signal.SIGKILL)
    assert sorted(said["num_calls"] for said in await counted(tmp_path / "1", spare, "count", seconds=60.0)) == [1, 2]
    await spare.end()
