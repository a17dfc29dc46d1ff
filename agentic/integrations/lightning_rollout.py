"""vime's side of Agent Lightning: a rollout that one of its runners runs. `agent_lightning.py` starts vime with it."""

import os
from typing import Any

import aiohttp
import orjson

from agentic.integrations.lightning_call import BRIDGE_VARIABLE, TASK_FIELD
from vime.errors import SampleError
from vime.rollout.context import Context, Sampling
from vime.types import Sample, StopReason

UNLIMITED = aiohttp.ClientTimeout(total=None, sock_read=None)
"""`rollout.generate_timeout_seconds` bounds a rollout."""


async def generate(context: Context, sample: Sample, sampling: Sampling) -> list[Sample]:
    """One rollout of Agent Lightning, in a session of its own; its reward is the last one that the agent returned or emitted.

    Raises SampleError if the rollout failed, its runner was lost, or the agent gave no reward: vime then tries again, which is
    another rollout of Agent Lightning. If the session ended the agent at one of its limits, the rollout counts and its reward is
    0 unless it has one.
    """
    async with context.session() as session:
        model = context.models["actor"]
        version = getattr(model, "minimum_version", None)  # a baseline behind a URL has none
        asked = {
            "task": sample.metadata[TASK_FIELD],
            "mode": "val" if context.evaluation else "train",
            "session": sample.session_id,
            "session_url": session.openai_url,
            "weights": f"{model.name} {version}",
            "metadata": {"vime_rollout": sample.rollout_id, "weight_version": version},
        }
        end = await _run(context, asked)
        reward, has_failed = end.get("reward"), end["end"] != "succeeded"
        if has_failed or reward is None:
            if session.stop_reason is StopReason.ANSWERED:
                why = end["reason"] if has_failed else "its agent returned no reward and emitted none"
                raise SampleError(f"Agent Lightning's rollout {end['rollout_id']}: {why}")
            reward = reward or 0.0
        samples = session.samples(sample, agent_lightning=end)
    for made in samples:
        made.reward = reward
    return samples


async def _run(context: Context, asked: dict[str, Any]) -> dict[str, Any]:
    """The bridge's report of the rollout. The agent's clock is stopped until a runner begins."""
    found: dict[str, Any] = {}
    url = f"{os.environ[BRIDGE_VARIABLE]}/rollouts"
    try:
        async with aiohttp.ClientSession(timeout=UNLIMITED) as http, http.post(url, json=asked) as response:
            response.raise_for_status()
            with context.clock.stopped():
                while "attempt_id" not in found and (line := await response.content.readline()):
                    found |= orjson.loads(line)
            async for line in response.content:
                found |= orjson.loads(line)
    except aiohttp.ClientError as error:
        raise SampleError(f"the bridge to Agent Lightning: {error}") from error
    if "end" not in found:
        raise SampleError("the bridge to Agent Lightning has gone")
    return found
