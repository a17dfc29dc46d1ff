"""A client of Agent Lightning's server, version 1: a rollout is run by its controller, and reports its reward to the server.

    AGL_URL=http://127.0.0.1:8080 AGL_KEY=… AGL_AGENT=my_agent:Agent \\
        python -m vime.run method.generate=agentic.integrations.lightning_server.generate method.reward=null …

The server's own proxy does not tell a model which rollout asks, so the controller gives each agent the URL of its session as
`AGL_OPENAI_BASE_URL`, in place of the proxy's.
"""

import asyncio
import os
from typing import Any

import aiohttp

from vime.errors import SampleError
from vime.rollout.context import Context, Sampling
from vime.rollout.outside_agent import row_of
from vime.types import Sample, StopReason

POLL_SECONDS = 0.2
LEAST_TIMEOUT_SECONDS = 3_600
"""The controller's limit is above that of vime, which does not count the time that an agent waits for servers."""
ENDED = ("succeeded", "failed")
URL_FIELD = "vime_openai_url"
TASK_VARIABLE = "AGL_TASK"
"""The environment variable in which an agent finds its row as JSON."""


async def generate(context: Context, sample: Sample, sampling: Sampling) -> list[Sample]:
    """One rollout of the server, in a session of its own; its reward is the last one that was reported.

    Raises SampleError if the rollout failed or nothing was reported: vime then tries again, which is another rollout. If the
    session ended the agent at one of its limits, the rollout counts and its reward is 0 unless it has one.
    """
    headers = {"Authorization": f"Bearer {os.environ.get('AGL_KEY', '')}"}
    async with context.session() as session:
        rollout = {
            "rollout_id": context.session_id,
            "input": {**row_of(sample), "label": sample.label, URL_FIELD: session.openai_url},
            "is_train": not context.evaluation,
            "config": {
                "timeout_seconds": max(LEAST_TIMEOUT_SECONDS, int(2 * context.config.rollout.generate_timeout_seconds)),
                "local": {
                    "agent_class": os.environ["AGL_AGENT"],
                    "env_map": {"AGL_OPENAI_BASE_URL": f"input.{URL_FIELD}", TASK_VARIABLE: "input"},
                },
            },
            "metadata": {"vime_rollout": sample.rollout_id, "vime_session": sample.session_id},
        }
        try:
            async with aiohttp.ClientSession(os.environ["AGL_URL"], headers=headers, raise_for_status=True) as http:
                status, reward = await _run(context, http, rollout)
        except aiohttp.ClientError as error:
            raise SampleError(f"Agent Lightning's server: {error}") from error
        if status["state"] == "failed" or reward is None:
            if session.stop_reason is StopReason.ANSWERED:
                failed = status.get("error_message") or "its agent failed"
                why = failed if status["state"] == "failed" else "it reported no reward"
                raise SampleError(f"Agent Lightning's rollout {context.session_id}: {why}")
            reward = reward or 0.0
        samples = session.samples(sample, agent_lightning={"rollout_id": context.session_id, "reward": reward})
    for made in samples:
        made.reward = reward
    return samples


async def _run(context: Context, http: aiohttp.ClientSession, rollout: dict[str, Any]) -> tuple[dict[str, Any], float | None]:
    """The end of the rollout, and its reward. The agent's clock is stopped until the controller has started it."""
    path, status = f"/api/rollouts/{rollout['rollout_id']}", {"state": "queuing"}
    async with http.post("/api/rollouts", json=[rollout]):
        pass
    try:
        with context.clock.stopped():
            while status["state"] == "queuing":
                status = await _status(http, path)
        while status["state"] not in ENDED:
            status = await _status(http, path)
        async with http.get(f"{path}/events", params={"event_type": "reward"}) as found:
            rewards = [event["data"]["value"] for event in await found.json()]
        return status, float(rewards[-1]) if rewards else None
    finally:
        await asyncio.shield(_delete(http, path))


async def _status(http: aiohttp.ClientSession, path: str) -> dict[str, Any]:
    await asyncio.sleep(POLL_SECONDS)
    async with http.get(path) as found:
        return (await found.json())["rollout"]["status"]


async def _delete(http: aiohttp.ClientSession, path: str) -> None:
    async with http.delete(path):
        pass
