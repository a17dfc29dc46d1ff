"""Agent Lightning on the training service: an algorithm whose loop runs in its trainer, over the Tinker API (`vime/service`).

    loop = ServiceLoop(url="http://127.0.0.1:8930", model="tiny", num_steps=20, num_rows=8, num_rollouts=8)
    agl.Trainer(algorithm=VIMEService(loop), n_runners=2, …).fit(agent, train_dataset=rows, val_dataset=held_out)

`agent_lightning.VIME` runs the same agents in a loop of vime. It needs `agentlightning` and `tinker` in its environment.
"""

import asyncio
import json
import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import agentlightning as agl  # pyright: ignore[reportMissingImports]
import aiohttp
import numpy as np
import tinker  # pyright: ignore[reportMissingImports]

from agentic.integrations.lightning_bridge import Bridge
from agentic.integrations.lightning_store import LightningStore

logger = logging.getLogger(__name__)

KEPT_SECONDS = 3600
"""Time for which the service keeps the weights of a step for samplers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceLoop:
    """A loop of group-relative policy gradients (arXiv 2402.03300): the advantage is the reward less the mean of its group.

    Example: `ServiceLoop(url="http://127.0.0.1:8930", model="tiny", num_steps=20, num_rows=8, num_rollouts=8)`.
    """

    url: str
    model: str
    num_steps: int
    num_rows: int
    """Rows of the data set in a step."""
    num_rollouts: int
    """Rollouts of each row, its group."""
    api_key: str = "tml-agent-lightning"
    rank: int = 32
    learning_rate: float = 1e-3
    loss: str = "importance_sampling"
    temperature: float = 1.0
    seed: int = 0
    max_retries: int = 3
    """Further attempts at a rollout that failed or gave no reward."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished:
    """A rollout with its reward and sequences, in the form of the service's losses. Finished(reward=1.0, sequences=[…])"""

    reward: float
    sequences: list[dict[str, Any]]


class VIMEService(agl.Algorithm):
    """Trains the agent of an Agent Lightning trainer on the training service."""

    def __init__(self, loop: ServiceLoop, *, lost_seconds: float = 45.0) -> None:
        """A runner that gives no sign of life for `lost_seconds` is lost."""
        super().__init__()
        self._loop, self._lost_seconds = loop, lost_seconds
        self.rewards: list[float] = []
        """The mean reward of each step."""
        self.validation: list[float] = []
        """The mean reward on the validation data before the first step and after the last one, where there are some."""

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        """Trains. Raises RuntimeError if a rollout fails at every attempt, or no runner is left."""
        data = {"train": train_dataset, "val": val_dataset}
        bridge = Bridge(LightningStore(self.get_store(), lost_seconds=self._lost_seconds), data)
        await bridge.start()
        watch = asyncio.create_task(bridge.watch())
        limits = {"timeout": aiohttp.ClientTimeout(total=None), "connector": aiohttp.TCPConnector(limit=0)}
        async with aiohttp.ClientSession(headers={"X-API-Key": self._loop.api_key}, **limits) as http:
            steps = asyncio.create_task(self._steps(_Rollouts(self._loop, http, bridge.url), data))
            await asyncio.wait({watch, steps}, return_when=asyncio.FIRST_COMPLETED)
            try:
                if watch.done():
                    watch.result()
                steps.result()
            finally:
                for task in (watch, steps):
                    task.cancel()
                await asyncio.wait({watch, steps})
                await bridge.stop()

    async def _steps(self, rollouts: "_Rollouts", data: dict[str, Any]) -> None:
        loop, rng = self._loop, random.Random(self._loop.seed)
        service = tinker.ServiceClient(base_url=loop.url, api_key=loop.api_key)
        client = await service.create_lora_training_client_async(loop.model, rank=loop.rank, seed=loop.seed)
        for step in range(loop.num_steps):
            weights = await _weights(client, step)
            if step == 0:
                await self._validate(rollouts, data, weights, step)
            rows = [rng.randrange(len(data["train"])) for _ in range(loop.num_rows)]
            asked = [rollouts.run("train", row, weights, step, place) for row in rows for place in range(loop.num_rollouts)]
            finished = await asyncio.gather(*asked)
            self.rewards.append(float(np.mean([each.reward for each in finished])))
            groups = [finished[start : start + loop.num_rollouts] for start in range(0, len(finished), loop.num_rollouts)]
            if datums := [datum for group in groups for datum in _datums(group)]:
                trained = await client.forward_backward_async(datums, loop.loss)
                stepped = await client.optim_step_async(tinker.AdamParams(learning_rate=loop.learning_rate))
                await trained.result_async()
                await stepped.result_async()
            logger.info("step %d: mean reward %.3f, %d sequences", step, self.rewards[-1], len(datums))
        await self._validate(rollouts, data, await _weights(client, loop.num_steps), loop.num_steps)

    async def _validate(self, rollouts: "_Rollouts", data: dict[str, Any], weights: str, step: int) -> None:
        if data["val"] is not None:
            found = await asyncio.gather(*[rollouts.run("val", row, weights, step, 0) for row in range(len(data["val"]))])
            self.validation.append(float(np.mean([each.reward for each in found])))
            logger.info("validation after %d steps: mean reward %.3f", step, self.validation[-1])


class _Rollouts:
    """Rollouts of Agent Lightning's runners, each attempt in a session of its own with the weights of a step."""

    def __init__(self, loop: ServiceLoop, http: aiohttp.ClientSession, bridge_url: str) -> None:
        self._loop, self._http, self._bridge_url = loop, http, bridge_url

    async def run(self, mode: Literal["train", "val"], row: int, weights: str, step: int, place: int) -> Finished:
        """One rollout. Raises RuntimeError if it fails at every attempt."""
        name, reason = f"{mode}-{step}-{row}-{place}", ""
        for _ in range(self._loop.max_retries + 1):
            agent = await self._opened(weights)
            metadata = {"vime_rollout": name, "weight_version": step}
            asked = {"task": row, "mode": mode, "session": name, "weights": weights, "metadata": metadata}
            found: dict[str, Any] = {}
            async with self._http.post(
                f"{self._bridge_url}/rollouts", json=asked | {"session_url": agent["openai_url"]}
            ) as response:
                response.raise_for_status()
                async for line in response.content:
                    found |= json.loads(line)
            answer = await self._asked("GET", f"agents/{agent['agent_id']}")
            await self._asked("DELETE", f"agents/{agent['agent_id']}")
            if found.get("end") == "succeeded" and found.get("reward") is not None and "error" not in answer:
                return Finished(reward=found["reward"], sequences=answer["sequences"])
            reason = answer.get("error") or found.get("reason") or "its agent returned no reward and emitted none"
        raise RuntimeError(f"the rollout {name} failed {self._loop.max_retries + 1} times, at last because: {reason}")

    async def _opened(self, weights: str) -> dict[str, Any]:
        found = await self._asked("POST", "agents", model_path=weights, sampling_params={"temperature": self._loop.temperature})
        if "error" in found:
            raise RuntimeError(f"the service opens no session of an agent: {found['error']}")
        return found

    async def _asked(self, method: str, path: str, **body: Any) -> dict[str, Any]:
        async with self._http.request(method, f"{self._loop.url}/api/v1/{path}", json=body or None) as response:
            return await response.json()


async def _weights(client: Any, step: int) -> str:
    """The path of the weights of a step, for samplers."""
    saved = await client.save_weights_for_sampler_async(f"step-{step}", ttl_seconds=KEPT_SECONDS)
    return (await saved.result_async()).path


def _datums(group: Sequence[Finished]) -> list[Any]:
    """The sequences of a group with their advantages; none if all rewards are equal."""
    rewards = np.array([each.reward for each in group], np.float32)
    if np.ptp(rewards) == 0:
        return []
    return [
        tinker.Datum(
            model_input=tinker.ModelInput.from_ints(sequence["tokens"]),
            loss_fn_inputs={
                "target_tokens": np.array(sequence["target_tokens"]),
                "logprobs": np.array(sequence["logprobs"], np.float32),
                "advantages": (finished.reward - rewards.mean()) * np.array(sequence["mask"], np.float32),
            },
        )
        for finished in group
        for sequence in finished.sequences
    ]
