"""Agent Lightning's store as the bridge uses it; runs in Agent Lightning's environment."""

import json
import time
from collections.abc import Sequence
from typing import Any, Literal

import agentlightning as agl  # pyright: ignore[reportMissingImports]

from agentic.integrations.lightning_call import MODEL, RecordedCall, RolloutState

ENDED: dict[str, Literal["succeeded", "failed"]] = {"succeeded": "succeeded", "failed": "failed", "cancelled": "failed"}
CALL_SPAN = "raw_gen_ai_request"
"""The name by which Agent Lightning's adapters find the calls of a model."""
RUNNER_START_SECONDS = 600.0
"""Seconds that the first runner may take until it gives its first sign of life."""


class LightningStore:
    """Rollouts, resources and spans of one run."""

    def __init__(self, store: Any, *, lost_seconds: float) -> None:
        """A runner that gives no sign of life for `lost_seconds` is lost."""
        self._store, self._lost_seconds, self._began = store, lost_seconds, time.time()
        self._resources: dict[str, str] = {}

    async def resources(self, weights: str, endpoint: str) -> str:
        """The id of the resources with these weights: new ones for each version of the weights, so that agents can tell."""
        if weights not in self._resources:
            proxy = agl.ProxyLLM(endpoint=endpoint, model=MODEL, sampling_parameters={})
            update = await self._store.add_resources({"main_llm": proxy})
            self._resources[weights] = update.resources_id
        return self._resources[weights]

    async def enqueue(self, row: Any, *, mode: Literal["train", "val"], resources_id: str, metadata: dict[str, Any]) -> str:
        """Puts one rollout into the queue of the runners; returns its id. It is tried once: vime itself tries again."""
        config = agl.RolloutConfig(max_attempts=1)
        rollout = await self._store.enqueue_rollout(
            input=row, mode=mode, resources_id=resources_id, config=config, metadata=metadata
        )
        return rollout.rollout_id

    async def states(self, rollout_ids: Sequence[str]) -> list[RolloutState]:
        """States of these rollouts. The attempt of a lost runner is given up, so that its rollout has failed."""
        silent = {worker.worker_id for worker in await self._store.query_workers() if self._is_silent(worker)}
        found: list[RolloutState] = []
        for rollout in await self._store.query_rollouts(rollout_id_in=list(rollout_ids)):
            attempt, end = getattr(rollout, "attempt", None), ENDED.get(rollout.status)
            if end is None and attempt is not None and attempt.worker_id in silent:
                await self._store.update_attempt(rollout.rollout_id, attempt.attempt_id, status="unresponsive")
                end, reason = "failed", f"its runner {attempt.worker_id} has given no sign of life for {self._lost_seconds:g} s"
            else:
                reason = "" if attempt is None else f"its attempt is {attempt.status}"
            state = RolloutState(
                rollout_id=rollout.rollout_id,
                attempt_id="" if attempt is None else attempt.attempt_id,
                runner="" if attempt is None else attempt.worker_id or "",
                end=end,
                reason=reason,
            )
            found.append(state)
        return found

    async def has_runners(self) -> bool:
        """True if any runner lives, or the first one may still come."""
        workers = await self._store.query_workers()
        if not workers:
            return time.time() - self._began < RUNNER_START_SECONDS
        return not all(map(self._is_silent, workers))

    async def attempt_of(self, rollout_id: str) -> str:
        """The id of the attempt that is under way, "" if no runner has begun."""
        attempt = await self._store.get_latest_attempt(rollout_id)
        return "" if attempt is None else attempt.attempt_id

    async def next_number(self, rollout_id: str, attempt_id: str) -> int:
        """The place of the next span; reserved when a call begins, so that it comes before the reward."""
        return await self._store.get_next_span_sequence_id(rollout_id, attempt_id)

    async def add_call(self, rollout_id: str, attempt_id: str, *, number: int, call: RecordedCall) -> None:
        """Adds the span of a model call, in the form that Agent Lightning's adapters read."""
        attributes = {
            "llm.hosted_vllm.id": call.response_id,
            "llm.hosted_vllm.prompt_token_ids": json.dumps(call.prompt_ids),
            "llm.hosted_vllm.choices": json.dumps([{"token_ids": choice.token_ids} for choice in call.choices]),
            "vime.logprobs": json.dumps([choice.logprobs for choice in call.choices]),
            "vime.weight_versions": json.dumps([choice.weight_versions for choice in call.choices]),
        }
        span = agl.Span.from_attributes(
            rollout_id=rollout_id,
            attempt_id=attempt_id,
            sequence_id=number,
            name=CALL_SPAN,
            attributes=attributes,
            start_time=call.began,
            end_time=call.ended,
        )
        await self._store.add_span(span)

    async def reward(self, rollout_id: str, attempt_id: str) -> float | None:
        """The last reward that the agent returned or emitted, None if it gave none."""
        return agl.find_final_reward(list(await self._store.query_spans(rollout_id, attempt_id)))

    async def cancel(self, rollout_id: str) -> None:
        """Cancels a rollout that is no longer needed: a runner that has not begun with it never will."""
        await self._store.update_rollout(rollout_id, status="cancelled")

    def _is_silent(self, worker: Any) -> bool:
        signs = (worker.last_heartbeat_time, worker.last_dequeue_time, worker.last_busy_time, worker.last_idle_time)
        return time.time() - max(sign or 0.0 for sign in signs) > self._lost_seconds
