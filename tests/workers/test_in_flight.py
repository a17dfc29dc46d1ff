"""Real servers: the weights change between two tokens of one request, and every token agrees with the trainer of its version."""

import asyncio
import copy
import dataclasses
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp

from vime.serving.client import TokenClient
from vime.types import Turn
from vime.weights.update import apply_payload

NUM_TOKENS, NUM_TRIES = 700, 8
PROMPT = [7, 8, 9] * 20
SAMPLING = {"max_tokens": NUM_TOKENS, "ignore_eos": True, "temperature": 1.0, "seed": 3}
ROUNDING = 1e-3
"""Nats: each try trains one more step, so logits and their rounding grow (1e-5 to 1e-4); other weights differ by several nats."""


async def test_a_request_over_a_sync_has_two_versions_and_each_span_has_that_versions_logprobs(served: dict[str, Any]):
    stack = served["untied"]
    client = TokenClient(stack.endpoint, stack.config.serving)
    generation, before = await over_a_sync(stack, client, stack.sync)
    await client.close()
    spans = await differences(stack, generation, before)
    assert max(spans["old"], spans["new"]) < ROUNDING, spans
    assert spans["wrong"] > 100 * ROUNDING, "the two versions must differ for this to mean anything"


async def test_with_the_cache_kept_what_goes_on_differs_and_what_is_new_does_not(served: dict[str, Any]):
    stack = served["tied"]

    async def sync(payload: Any) -> None:
        async with aiohttp.ClientSession() as session:
            await apply_payload(session, stack.endpoint.worker_urls[0], payload, name="tied", timeout_seconds=60, keep_cache=True)
        for file in payload.files:
            Path(file).unlink()

    client = TokenClient(stack.endpoint, dataclasses.replace(stack.config.serving, keep_cache=True))
    generation, before = await over_a_sync(stack, client, sync)
    spans = await differences(stack, generation, before)
    assert spans["old"] < ROUNDING < spans["new"], spans
    version = stack.trainer.version
    fresh = await client.generate(PROMPT, sampling=SAMPLING, session_id="a", request_id="fresh", minimum_version=version)
    assert max((await differences(stack, fresh, before)).values()) < ROUNDING
    await client.close()
    stack.trainer.step()
    await stack.sync(stack.trainer.export())  # as other tests want it


async def over_a_sync(stack: Any, client: TokenClient, sync: Callable[[Any], Awaitable[Any]]) -> tuple[Turn, Any]:
    """A generation during which the weights changed, and the model before."""
    stack.trainer.step()
    await sync(stack.trainer.export())
    for attempt in range(NUM_TRIES):
        before, old_version = copy.deepcopy(stack.trainer.model), stack.trainer.version
        stack.trainer.step()
        payload = stack.trainer.export()
        call = client.generate(
            PROMPT, sampling=SAMPLING, session_id="flight", request_id=f"flight-{attempt}", minimum_version=old_version
        )
        request = asyncio.create_task(call)
        await asyncio.sleep(0.1 * (attempt + 1))
        await sync(payload)
        generation = await request
        versions = generation.weight_versions
        if set(versions) == {old_version, old_version + 1}:
            assert versions == sorted(versions) and len(versions) == NUM_TOKENS
            return generation, before
    raise AssertionError(f"no request of {NUM_TRIES} was at work during a sync")


async def differences(stack: Any, generation: Turn, before: Any) -> dict[str, float]:
    """The largest difference of logprobs: before the sync, after it, and after it by the old weights."""
    new_version, after = stack.trainer.version, stack.trainer.model
    border = generation.weight_versions.index(new_version)
    found: dict[str, float] = {}
    for name, model, first, last in (
        ("old", before, 0, border),
        ("new", after, border, NUM_TOKENS),
        ("wrong", before, border, NUM_TOKENS),
    ):
        if border == 0 and name != "new":
            continue
        stack.trainer.model = model
        ours = (await stack.trainer.logprobs([PROMPT + generation.output_ids], [NUM_TOKENS]))[0]
        found[name] = max(abs(a - b) for a, b in zip(ours[first:last], generation.logprobs[first:last]))
    stack.trainer.model = after
    return found
