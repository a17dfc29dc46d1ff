"""A reward service over real HTTP: what it says, each way in which it fails with its row of the table, limits and the key."""

import asyncio
import json
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from tests.sampled import sample_of
from vime.config import RewardServiceConfig, RolloutConfig, RunConfig
from vime.errors import RewardServiceError
from vime.reward_service import hook
from vime.reward_service import reward_client as client_module
from vime.reward_service.reward_batches import RewardBatches
from vime.reward_service.reward_client import RewardClient
from vime.reward_service.wire_format import read_answer
from vime.rollout.context import Context, Sampling
from vime.types import COUNTS, Reward, Rollout, Sample, StopReason, Turn
from vime.workers.isolation import Hooks, run_rollout

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from reward_service import make_app

KEY = "s3cr3t-k3y"
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No wait between attempts, and a key in the environment."""
    monkeypatch.setattr(client_module, "FIRST_BACKOFF_SECONDS", 0.001)
    monkeypatch.setenv("REWARD_KEY", KEY)


@pytest_asyncio.fixture(autouse=True)
async def closed() -> AsyncIterator[None]:
    """Ends the hook's state for a worker's event loop together with the loop of the test."""
    yield
    batches = hook._batches.pop(asyncio.get_running_loop(), None)
    if batches is not None:
        assert isinstance(batches._client, RewardClient)
        await batches._client.close()


@asynccontextmanager
async def serving(app: web.Application) -> AsyncIterator[tuple[str, list[Any]]]:
    """The address of a service while it runs, and the requests that it gets."""
    seen: list[Any] = []

    @web.middleware
    async def note(request: web.Request, handler: Any) -> Any:
        seen.append(await request.json())
        return await handler(request)

    app.middlewares.append(note)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/score", seen
    finally:
        await runner.cleanup()


def answering(answer: Answer) -> web.Application:
    app = web.Application()
    app.router.add_post("/score", answer)
    return app


def settings(url: str, **given: Any) -> RewardServiceConfig:
    return RewardServiceConfig(**{"url": url, "max_batch_wait_seconds": 0.01, "request_timeout_seconds": 30.0, **given})


async def rollout(service: RewardServiceConfig, reply: str = "so 27", **limits: Any) -> Rollout:
    """One rollout whose reward is asked of the service, through the hook."""
    config = RunConfig(reward_service=service, rollout=RolloutConfig(**{"max_reward_retries": 1, **limits}))

    async def generate(context: Context, sample: Sample, sampling: Sampling) -> Sample:
        turn = Turn(
            prompt_ids=[1, 2],
            output_ids=[3],
            logprobs=[-0.1],
            weight_versions=[0],
            finish_reason="stop",
            message={"role": "assistant", "content": reply},
        )
        return sample_of(sample, turn)

    return await run_rollout(
        hooks=Hooks(generate=generate, reward=hook.reward),
        config=config.rollout,
        make_context=lambda number: Context(config=config, evaluation=False, session_id=str(number)),
        template=Sample(prompt=[], label=["27"], group_index=2, rollout_id=7, session_id="s-0"),
        sampling=Sampling(temperature=1.0, top_p=1.0),
    )


async def test_the_example_scores_rollouts_with_the_key_and_in_one_request():
    async with serving(make_app(key=KEY)) as (url, seen):
        service = settings(url, api_key_variable="REWARD_KEY", max_batch_size=3, max_batch_wait_seconds=20.0)
        found = await asyncio.gather(*[rollout(service, reply) for reply in ("so 27", "27 or 28", "it is 27.")])
    assert [(r.stop_reason, r.reward) for r in found] == [(StopReason.ANSWERED, reward) for reward in (1.0, 0.0, 1.0)]
    assert found[1].metrics == {"strict": 0.0, "lenient": 1.0}
    assert len(seen) == 1 and [item["id"] for item in seen[0]["items"]] == [0, 1, 2]
    samples = [{"prompt": [], "response": "27 or 28", "metadata": {}}]
    assert {"id": 1, "session": "s-0", "label": ["27"], "samples": samples} in seen[0]["items"]


ROWS: dict[str, tuple[StopReason, int, dict[str, Any]]] = {
    "slow": (StopReason.REWARD_TIMEOUT, 4, {"request_timeout_seconds": 0.05}),
    "down": (StopReason.REWARD_RAISED, 4, {}),
    "wrong": (StopReason.REWARD_RAISED, 2, {}),
    "overloaded": (StopReason.REWARD_RAISED, 4, {}),
}
"""By the fault of the example: why the rollout ends, and requests with one new attempt of the client and one of the reward."""


@pytest.mark.parametrize("fault", ROWS)
async def test_a_service_that_fails_has_its_row_of_the_table(fault: str):
    reason, num_requests, limits = ROWS[fault]
    async with serving(make_app(fault=fault, retry_after=0.01)) as (url, seen):
        found = await rollout(settings(url, max_retries=1, **limits))
    assert found.stop_reason is reason and "reward service" in found.error, found.error
    assert len(seen) == num_requests or fault == "slow"  # on a busy machine, the time may be over before a request arrives
    assert not COUNTS[reason].trained and not COUNTS[reason].in_baseline


async def test_a_pause_longer_than_the_reward_may_take_is_a_timeout_and_nobody_asks_meanwhile():
    async with serving(make_app(fault="overloaded", retry_after=200)) as (url, seen):
        service = settings(url, max_retries=3, max_batch_size=3)
        limits = {"reward_timeout_seconds": 2.0, "max_reward_retries": 0}
        found = await asyncio.gather(*[rollout(service, **limits) for _ in range(3)])
    assert {r.stop_reason for r in found} == {StopReason.REWARD_TIMEOUT} and len(seen) <= 1


async def test_a_service_that_is_not_there_at_all_is_down():
    found = await rollout(settings("http://127.0.0.1:9/score", max_retries=0))
    assert found.stop_reason is StopReason.REWARD_RAISED and "cannot be reached" in found.error


@pytest.mark.parametrize(
    ("status", "num_requests"), [(500, 3), (503, 3), (408, 3), (425, 3), (400, 1), (401, 1), (404, 1), (302, 1)]
)
async def test_only_what_may_pass_is_asked_again(status: int, num_requests: int):
    async def refuse(request: web.Request) -> web.Response:
        return web.Response(status=status, text="no", headers={"Location": "http://127.0.0.1:9/"})

    async with serving(answering(refuse)) as (url, seen):
        client = RewardClient(settings(url, max_retries=2))
        with pytest.raises(RewardServiceError, match=f"status {status}: no"):
            await client.score([{}])
        await client.close()
    assert len(seen) == num_requests


async def test_one_bad_item_of_a_batch_costs_that_item_alone():
    entries = [
        {"id": 5, "reward": 0.5},
        {"id": 0, "reward": 1},
        {"id": 1, "reward": "high"},
        {"id": 2, "reward": float("nan")},
        {"id": 3, "error": "no parser"},
        {"id": 6, "reward": None},
        {"id": 7, "reward": True},
        {"id": 8, "reward": 1.0, "metrics": {"strict": "yes"}},
    ]

    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=json.dumps({"rewards": entries}))

    async with serving(answering(answer)) as (url, seen):
        service = settings(url, max_batch_size=9, max_batch_wait_seconds=20.0)
        client = RewardClient(service)
        batches = RewardBatches(service, client)
        found = await asyncio.gather(*[batches.score({}) for _ in range(9)], return_exceptions=True)
        await client.close()
    assert len(seen) == 1
    assert [entry.score if isinstance(entry, Reward) else None for entry in found] == [1.0, *[None] * 4, 0.5, *[None] * 3]
    assert "leaves this item out" in str(found[4]) and "no parser" in str(found[3])
    assert all(isinstance(error, RewardServiceError) for error in found if not isinstance(error, Reward))


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        "[]",
        "{}",
        '{"rewards": 3}',
        '{"rewards": [1.0, 0.5]}',
        '{"rewards": [{"reward": 1}]}',
        '{"rewards": [{"id": 0, "reward": 1}, {"id": 0, "reward": 0}]}',
        '{"rewards": [{"id": 0, "reward": 1}, {"id": 2, "reward": 0}]}',
        '{"rewards": [{"id": "0", "reward": 1}]}',
    ],
)
def test_an_answer_that_cannot_be_assigned_fails_as_a_whole(text: str):
    with pytest.raises(RewardServiceError):
        read_answer(text, num_items=2)


class Stopped:
    """A client whose requests wait until they are let go; it notes the sizes of its batches."""

    def __init__(self) -> None:
        self.sizes, self.go = list[int](), asyncio.Event()

    async def score(self, items: list[dict[str, Any]]) -> list[Reward | RewardServiceError]:
        self.sizes.append(len(items))
        await self.go.wait()
        return [Reward(score=item["value"]) for item in items]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


async def test_batches_are_bounded_in_size_and_number_and_callers_wait_before_a_full_queue():
    client = Stopped()
    scoring: Any = client
    batches = RewardBatches(settings("http://x", max_batch_size=4, max_concurrent_requests=2, max_pending=10), scoring)
    calls = [asyncio.create_task(batches.score({"value": float(number)})) for number in range(40)]
    await until(lambda: client.sizes == [4, 4] and batches.num_waiting == 2)
    for given_up in calls[9:35]:
        given_up.cancel()
    await asyncio.wait(calls[9:35])
    await until(lambda: batches.num_waiting == 2)  # of 14 that are left, 8 are in requests, and 4 wait before the queue
    client.go.set()
    found = await asyncio.gather(*calls[:9], *calls[35:])
    assert [reward.score for reward in found] == [*map(float, range(9)), *map(float, range(35, 40))]
    assert max(client.sizes) <= 4 and batches.num_waiting == 0


async def test_requests_start_evenly_and_a_worker_has_its_share(monkeypatch: pytest.MonkeyPatch):
    client, starts = RewardClient(settings("http://x", max_requests_per_minute=60), share=0.5), list[float]()

    async def at_once(seconds: float) -> None:
        starts.append(seconds)

    monkeypatch.setattr(client_module.asyncio, "sleep", at_once)
    monkeypatch.setattr(client_module.time, "monotonic", lambda: 100.0)
    for _ in range(3):
        await client._until_next_start()
    assert starts == [0.0, 2.0, 4.0]


@pytest.mark.parametrize("fault", ["echo", "refused", "gone"])
async def test_the_key_is_in_no_error_and_no_log(fault: str, caplog: pytest.LogCaptureFixture):
    async def echo(request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == f"Bearer {KEY}"
        if fault == "gone":
            assert request.transport is not None
            request.transport.abort()
        return web.Response(status=200 if fault == "echo" else 403, text=f"your header was {dict(request.headers)}")

    with caplog.at_level(logging.DEBUG):
        async with serving(answering(echo)) as (url, seen):
            found = await rollout(settings(url, api_key_variable="REWARD_KEY", max_retries=1))
    assert seen and found.stop_reason is StopReason.REWARD_RAISED
    assert KEY not in found.error and KEY not in caplog.text
