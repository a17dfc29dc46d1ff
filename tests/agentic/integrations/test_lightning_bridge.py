"""The bridge to Agent Lightning, between a session of a scripted model and a store that runs its agents itself."""

import asyncio
import gzip
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import aiohttp
import pytest
from openai import AsyncOpenAI, BadRequestError

from agentic.integrations.lightning_bridge import Bridge
from agentic.integrations.lightning_call import BRIDGE_VARIABLE, TASK_FIELD, EventSplitter, RecordedCall, RolloutState
from agentic.integrations.lightning_rollout import generate
from tests.completing import served_by
from tests.gateway.scripted import Scripted, user
from tests.qwen3_tokenizer import qwen3_tokenizer
from vime.errors import SampleError
from vime.gateway.session_manager import SessionManager
from vime.preflight.compose import compose_run
from vime.rollout.context import Context, Sampling
from vime.types import Sample, StopReason

Agent = Callable[[AsyncOpenAI, Any], Awaitable[float | None]]
REPLIES = ("one two three<|im_end|>", "four five<|im_end|>", "six<|im_end|>")


@dataclass(kw_only=True)
class Played:
    """A store that runs its agents at once, in place of runners."""

    agent: Agent
    status: dict[str, str] = field(default_factory=dict)
    rewards: dict[str, float | None] = field(default_factory=dict)
    inputs: list[tuple[Any, str, str, dict[str, Any]]] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    endpoints: list[str] = field(default_factory=list)
    calls: list[tuple[str, int, RecordedCall]] = field(default_factory=list)
    tasks: list[Any] = field(default_factory=list)
    numbers: Any = field(default_factory=lambda: itertools.count(1))
    lives: bool = True
    waits: bool = False
    """True if no runner takes anything from the queue."""

    async def resources(self, weights: str, endpoint: str) -> str:
        self.endpoints.append(endpoint)
        return self.versions.setdefault(weights, f"rs-{len(self.versions)}")

    async def enqueue(self, row: Any, *, mode: Any, resources_id: str, metadata: dict[str, Any]) -> str:
        rollout_id = f"ro-{len(self.inputs)}"
        self.inputs.append((row, mode, resources_id, metadata))
        self.status[rollout_id] = "queuing"
        if not self.waits:
            self.status[rollout_id] = "running"
            self.tasks.append(asyncio.create_task(self._play(rollout_id, row)))
        return rollout_id

    async def _play(self, rollout_id: str, row: Any) -> None:
        base = self.endpoints[-1].removesuffix("/v1") + f"/rollout/{rollout_id}/attempt/at-{rollout_id}/v1"
        try:
            async with AsyncOpenAI(base_url=base, api_key="none", max_retries=0) as client:
                self.rewards[rollout_id] = await self.agent(client, row)
            self.status[rollout_id] = "succeeded"
        except RuntimeError:
            self.status[rollout_id] = "failed"

    async def states(self, rollout_ids: Any) -> list[RolloutState]:
        return [self._state(rollout_id) for rollout_id in rollout_ids]

    def _state(self, rollout_id: str) -> RolloutState:
        status: Any = self.status[rollout_id]
        attempt = "" if status == "queuing" else f"at-{rollout_id}"
        end = status if status in ("succeeded", "failed") else None
        return RolloutState(rollout_id=rollout_id, attempt_id=attempt, runner="worker-0", end=end, reason=f"it is {status}")

    async def has_runners(self) -> bool:
        return self.lives

    async def attempt_of(self, rollout_id: str) -> str:
        return f"at-{rollout_id}"

    async def next_number(self, rollout_id: str, attempt_id: str) -> int:
        return next(self.numbers)

    async def add_call(self, rollout_id: str, attempt_id: str, *, number: int, call: RecordedCall) -> None:
        self.calls.append((rollout_id, number, call))

    async def reward(self, rollout_id: str, attempt_id: str) -> float | None:
        return self.rewards.get(rollout_id)

    async def cancel(self, rollout_id: str) -> None:
        self.status[rollout_id] = "cancelled"


@dataclass(kw_only=True)
class Stage:
    """vime's side: rollouts in a context whose model is scripted."""

    store: Played
    context: Context
    model: Scripted
    watch: "asyncio.Task[None]"

    async def rollout(self, session: str = "train-3-0-ab") -> list[Sample]:
        """One attempt."""
        sample = Sample(prompt=[user("1?")], metadata={TASK_FIELD: 1}, rollout_id=17, session_id=session)
        return await generate(self.context, sample, Sampling(temperature=1.0, top_p=1.0))


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Any:
    @asynccontextmanager
    async def make(agent: Agent, *words: str, **options: Any) -> AsyncIterator[Stage]:
        store, sessions, model = Played(agent=agent, **options), SessionManager(), Scripted(qwen3_tokenizer(), list(REPLIES))
        bridge = Bridge(cast(Any, store), {"train": ["row 0", "row 1"], "val": None})
        await bridge.start()
        monkeypatch.setenv(BRIDGE_VARIABLE, bridge.url)
        watch = asyncio.create_task(bridge.watch())
        config = compose_run(["+experiment=database_tiny", "mode=plan", *words]).config
        models = {"actor": served_by(model, minimum_version=4)}
        context = Context(
            config=config,
            evaluation=False,
            session_id="one-0",
            models=models,
            sessions=sessions,
            trajectory=models["actor"].trajectory,
        )
        try:
            yield Stage(store=store, context=context, model=model, watch=watch)
        finally:
            for task in (watch, *store.tasks):
                task.cancel()
            await asyncio.gather(watch, *store.tasks, return_exceptions=True)
            await bridge.stop()
            await sessions.stop()

    return make


async def ask(client: AsyncOpenAI, *messages: Any, **options: Any) -> Any:
    return await client.chat.completions.create(model="policy", messages=list(messages), **options)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_rollout_is_trained_exactly_and_its_calls_stand_in_the_store(stage: Any, stream: bool):
    async def agent(client: AsyncOpenAI, row: Any) -> float:
        messages = [user(row)]
        for _ in range(2):
            found = await ask(client, *messages, stream=stream)
            if stream:
                text = "".join([chunk.choices[0].delta.content or "" async for chunk in found])
            else:
                text = found.choices[0].message.content
            messages += [{"role": "assistant", "content": text}, user("go on")]
        return 0.75

    async with stage(agent) as played:
        [sample] = await played.rollout()
    assert sample.reward == 0.75 and played.store.inputs == [
        ("row 1", "train", "rs-0", {"vime_rollout": 17, "weight_version": 4, "vime_session": "train-3-0-ab", "vime_attempt": 0})
    ]
    found = [call for _, _, call in played.store.calls]
    assert [call.prompt_ids for call in found] == played.model.prompts
    assert [call.choices[0].token_ids for call in found] == [list(turn.output_ids) for turn in played.model.turns]
    assert [call.choices[0].logprobs for call in found] == [list(turn.logprobs) for turn in played.model.turns]
    assert all(set(call.choices[0].weight_versions) == {1} for call in found)
    trained = [token for token, mask in zip(sample.tokens[-sample.response_length :], sample.loss_mask, strict=True) if mask]
    assert trained == [token for turn in played.model.turns for token in turn.output_ids]
    assert sample.metadata["agent_lightning"]["attempt_id"] == "at-ro-0"


async def test_a_failed_attempt_is_told_apart_from_the_next_one(stage: Any):
    async def agent(client: AsyncOpenAI, row: Any) -> float:
        await ask(client, user(row))
        if len(played.store.inputs) == 1:
            raise RuntimeError("the first time")
        return 1.0

    async with stage(agent) as played:
        with pytest.raises(SampleError, match="ro-0: it is failed"):
            await played.rollout()
        [sample] = await played.rollout()
        await played.rollout("train-9-0-cd")
    assert sample.metadata["agent_lightning"]["rollout_id"] == "ro-1"
    assert [metadata["vime_attempt"] for *_, metadata in played.store.inputs] == [0, 1, 0]
    trained = [token for token, mask in zip(sample.tokens[-sample.response_length :], sample.loss_mask, strict=True) if mask]
    assert trained == list(played.model.turns[1].output_ids), "of the second attempt only"


async def test_an_agent_without_a_reward_has_failed(stage: Any):
    async def agent(client: AsyncOpenAI, row: Any) -> None:
        await ask(client, user(row))

    async with stage(agent) as played:
        with pytest.raises(SampleError, match="no reward"):
            await played.rollout()


async def test_an_agent_that_its_session_ended_counts_with_reward_0(stage: Any):
    async def agent(client: AsyncOpenAI, row: Any) -> float:
        await ask(client, user(row))
        try:
            await ask(client, user("more"))
        except BadRequestError as error:
            raise RuntimeError("refused") from error
        return 1.0

    async with stage(agent, "method.session.num_calls=1") as played:
        [sample] = await played.rollout()
    assert sample.reward == 0.0 and sample.stop_reason is StopReason.TURN_LIMIT


async def test_new_weights_are_new_resources_and_equal_ones_are_not(stage: Any):
    async def agent(client: AsyncOpenAI, row: Any) -> float:
        await ask(client, user(row))
        return 1.0

    async with stage(agent) as played:
        for version in (4, 4, 5):
            played.context.models["actor"].minimum_version = version
            await played.rollout(f"train-{len(played.store.inputs)}")
    assert [resources_id for _, _, resources_id, _ in played.store.inputs] == ["rs-0", "rs-0", "rs-1"]


async def test_an_answer_to_a_client_that_asks_again_is_recorded_once(stage: Any):
    async def agent(client: AsyncOpenAI, row: Any) -> float:
        await ask(client, user(row))
        await ask(client, user(row), extra_headers={"x-stainless-retry-count": "1"})
        return 1.0

    async with stage(agent) as played:
        await played.rollout()
    assert len(played.model.turns) == 1 and len(played.store.calls) == 1


async def test_a_compressed_request_and_other_protocols_are_passed_on(stage: Any):
    async def agent(client: AsyncOpenAI, row: Any) -> float:
        body = gzip.compress(json.dumps({"messages": [user(row)]}).encode())
        headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        url = f"{client.base_url}chat/completions"
        async with aiohttp.ClientSession(headers=headers) as http, http.post(url, data=body) as found:
            assert (await found.json())["choices"][0]["message"]["content"]
        assert (await client.responses.create(model="policy", input="and?")).output_text
        return 1.0

    async with stage(agent) as played:
        await played.rollout()
    assert len(played.model.turns) == 2 and len(played.store.calls) == 1, "spans are those of Chat Completions"


async def test_another_attempt_and_a_rollout_that_is_over_find_no_model(stage: Any):
    refused: list[str] = []

    async def agent(client: AsyncOpenAI, row: Any) -> float:
        other = client.with_options(base_url=str(client.base_url).replace("at-ro-0", "at-old"))
        try:
            await ask(other, user(row))
        except BadRequestError as error:
            refused.append(str(error))
        await ask(client, user(row))
        return 1.0

    async with stage(agent) as played:
        await played.rollout()
        base = f"{played.store.endpoints[0].removesuffix('/v1')}/rollout/ro-0/attempt/at-ro-0/v1"
        async with AsyncOpenAI(base_url=base, api_key="none", max_retries=0) as client:
            with pytest.raises(BadRequestError, match="is over"):
                await ask(client, user("late"))
    assert len(refused) == 1 and "at-old" in refused[0] and len(played.model.turns) == 1


async def test_an_agent_whose_session_has_gone_stops_at_once(stage: Any):
    refused: list[str] = []

    async def agent(client: AsyncOpenAI, row: Any) -> float:
        await ask(client, user(row))
        await played.context.sessions.stop()
        try:
            await ask(client, user("more"))
        except BadRequestError as error:
            refused.append(str(error))
        return 1.0

    async with stage(agent) as played:
        await played.rollout()
    assert len(refused) == 1


async def test_a_rollout_that_nobody_waits_for_is_cancelled_and_its_queue_costs_no_time(stage: Any):
    async def agent(client: AsyncOpenAI, row: Any) -> float:
        return 1.0

    async with stage(agent, waits=True) as played:
        rollout = asyncio.create_task(played.rollout())
        while not played.store.inputs or not played.context.clock._num_stops:
            await asyncio.sleep(0.01)
        before = played.context.clock.seconds
        await asyncio.sleep(0.05)
        assert played.context.clock.seconds == before
        rollout.cancel()
        while played.store.status["ro-0"] != "cancelled":
            await asyncio.sleep(0.01)


async def test_without_a_living_runner_the_run_ends(stage: Any):
    async def agent(client: AsyncOpenAI, row: Any) -> float:
        return 1.0

    async with stage(agent, waits=True, lives=False) as played:
        rollout = asyncio.create_task(played.rollout())
        with pytest.raises(RuntimeError, match="no runner"):
            await played.watch
        rollout.cancel()


def test_events_are_whole_wherever_the_stream_is_cut():
    stream = b'data: {"id": 1}\n\ndata: {"id": 2}\n\ndata: [DONE]\n\n'
    for place in range(len(stream)):
        splitter = EventSplitter()
        events = splitter.feed(stream[:place]) + splitter.feed(stream[place:])
        assert b"".join(events) == stream and len(events) == 3
