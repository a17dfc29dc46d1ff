"""Real servers: the weights change between two tokens of one request, and every token agrees with the trainer of its version."""

import asyncio
import copy
from typing import Any

from vime.serving.client import TokenClient

NUM_TOKENS, NUM_TRIES = 700, 8


async def test_a_request_over_a_sync_has_two_versions_and_each_span_has_that_versions_logprobs(served: dict[str, Any]):
    stack = served["untied"]
    stack.trainer.step()
    await stack.sync(stack.trainer.export())
    client = TokenClient(stack.endpoint, stack.config.serving)
    prompt, sampling = [7, 8, 9] * 20, {"max_tokens": NUM_TOKENS, "ignore_eos": True, "temperature": 1.0, "seed": 3}
    try:
        for attempt in range(NUM_TRIES):
            before, old_version = copy.deepcopy(stack.trainer.model), stack.trainer.version
            stack.trainer.step()
            payload = stack.trainer.export()
            request = asyncio.create_task(
                client.generate(prompt, sampling=sampling, session_id="flight", request_id=f"flight-{attempt}")
            )
            await asyncio.sleep(0.1 * (attempt + 1))
            await stack.sync(payload)
            generation = await request
            versions = generation.weight_versions
            if set(versions) == {old_version, old_version + 1}:
                break
        else:
            raise AssertionError(f"no request of {NUM_TRIES} was at work during a sync: {set(versions)}")
    finally:
        await client.close()
    assert versions == sorted(versions) and len(versions) == NUM_TOKENS
    border = versions.index(old_version + 1)
    tokens, after = prompt + generation.output_ids, stack.trainer.model
    spans: dict[str, float] = {}
    for name, model, first, last in (
        ("old", before, 0, border),
        ("new", after, border, NUM_TOKENS),
        ("wrong", before, border, NUM_TOKENS),
    ):
        stack.trainer.model = model
        ours = (await stack.trainer.logprobs([tokens], [NUM_TOKENS]))[0]
        spans[name] = max(abs(a - b) for a, b in zip(ours[first:last], generation.logprobs[first:last]))
    stack.trainer.model = after
    assert max(spans["old"], spans["new"]) < 1e-4, spans
    assert spans["wrong"] > 1e-2, "the two versions must differ for this to mean anything"
