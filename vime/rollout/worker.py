"""A rollout worker: one process that runs the rollouts of many groups at once, asynchronously.

It holds no state that matters: a lost worker is replaced and its groups are run again.
"""

import asyncio
import logging
import uuid
from functools import partial
from typing import Any

from vime.config import RunConfig
from vime.hooks import load_hook
from vime.rollout.chat_model import ChatModel
from vime.rollout.context import Context, Sampling
from vime.rollout.isolation import Hooks, describe, run_rollout, to_reward
from vime.rollout.model import Model
from vime.serving.calls import Calls
from vime.serving.client import TokenClient
from vime.serving.clients import make_client
from vime.serving.external import ChatClient
from vime.serving.topology import Endpoint
from vime.types import Group, Prompt, Rollout, Sample, StopReason

logger = logging.getLogger(__name__)

ROLLOUTS_PER_GROUP = 1_000_000
"""Rollout ids are `slot * ROLLOUTS_PER_GROUP + member`: unique within a run without a counter to share."""


class RolloutWorker:
    """Runs groups; wrap it with `ray.remote`. All methods are coroutines of one event loop."""

    def __init__(self, config: RunConfig, endpoints: dict[str, Endpoint]) -> None:
        from transformers import AutoTokenizer

        self._config = config
        self._endpoints = endpoints
        self._tokenizers = {name: AutoTokenizer.from_pretrained(e.tokenizer) for name, e in endpoints.items() if not e.chat}
        self._clients: dict[str, TokenClient | ChatClient] = {}
        self._slots = asyncio.Semaphore(config.rollout.max_concurrent_rollouts)
        method = config.method
        reward = load_hook(method.reward)
        self._hooks = {
            "train": Hooks(generate=load_hook(method.generate), reward=reward),
            "single_turn": Hooks(generate=load_hook(method.single_turn), reward=reward),
        }
        self._group_reward = load_hook(method.group_reward) if method.group_reward else None
        self._function = load_hook(config.rollout.function) if config.rollout.function else None

    async def ready(self) -> bool:
        """Answers once the worker can take groups."""
        return True

    async def calls(self) -> dict[str, Calls]:
        """What was asked of each served model since the last call of this."""
        return {name: client.calls.take() for name, client in self._clients.items()}

    async def run_group(self, *, prompt: Prompt, slot: int, num_rollouts: int, version: int) -> Group:
        """The rollouts of one prompt for training; `version` is the servers' weight version at admission."""
        sampling = Sampling(temperature=self._config.rollout.temperature, top_p=self._config.rollout.top_p)
        make_context = partial(self._context, sampling=sampling, version=version, evaluation=False)
        if self._function is not None:
            group = await self._function(make_context(f"slot{slot}"), prompt, num_rollouts)
            for member, rollout in enumerate(group.rollouts):
                rollout.rollout_id, rollout.group_index = slot * ROLLOUTS_PER_GROUP + member, slot
            group.weight_version = version
            return group
        members = [
            self._run(self._hooks["train"], prompt, slot=slot, member=member, sampling=sampling, make_context=make_context)
            for member in range(num_rollouts)
        ]
        group = Group(prompt=prompt, rollouts=list(await asyncio.gather(*members)), weight_version=version)
        if self._group_reward is not None:
            await self._score_group(group, make_context(f"slot{slot}-reward"))
        return group

    async def run_item(self, *, prompt: Prompt, row: str, temperature: float, version: int) -> Rollout:
        """One rollout of an evaluation item; `row` is single_turn, scaffold or trained."""
        sampling = Sampling(temperature=temperature, top_p=self._config.evaluation.top_p)
        make_context = partial(self._context, sampling=sampling, version=version, evaluation=True)
        hooks = self._hooks["single_turn" if row == "single_turn" else "train"]
        return await self._run(hooks, prompt, slot=prompt.index, member=0, sampling=sampling, make_context=make_context)

    async def _run(
        self, hooks: Hooks, prompt: Prompt, *, slot: int, member: int, sampling: Sampling, make_context: Any
    ) -> Rollout:
        session = f"{prompt.dataset}-{slot}-{member}-{uuid.uuid4().hex[:8]}"
        template = Sample(
            prompt=prompt.messages,
            label=prompt.ground_truth,
            metadata=prompt.metadata,
            group_index=slot,
            rollout_id=slot * ROLLOUTS_PER_GROUP + member,
            session_id=session,
        )
        async with self._slots:
            return await run_rollout(
                hooks=hooks,
                config=self._config.rollout,
                make_context=lambda attempt: make_context(f"{session}-{attempt}"),
                template=template,
                sampling=sampling,
            )

    async def _score_group(self, group: Group, context: Context) -> None:
        assert self._group_reward is not None
        scored = [rollout for rollout in group.rollouts if rollout.counting.in_baseline]
        subgroup = Group(prompt=group.prompt, rollouts=scored, weight_version=group.weight_version)
        try:
            rewards = await asyncio.wait_for(
                self._group_reward(context, subgroup), timeout=self._config.rollout.reward_timeout_seconds
            )
            for rollout, reward in zip(scored, map(to_reward, rewards), strict=True):
                rollout.reward, rollout.metrics = reward.score, {**rollout.metrics, **reward.metrics}
        except asyncio.TimeoutError:
            _fail(scored, StopReason.REWARD_TIMEOUT, "group_reward ran longer than rollout.reward_timeout_seconds")
        except Exception as error:  # the boundary of a user's function: any failure costs this group only
            logger.warning("group_reward raised in slot %d", group.rollouts[0].group_index, exc_info=True)
            _fail(scored, StopReason.REWARD_RAISED, describe(error))

    def _context(self, session: str, *, sampling: Sampling, version: int, evaluation: bool) -> Context:
        models = {name: self._model(name, session, sampling, version) for name in self._endpoints}
        return Context(config=self._config, evaluation=evaluation, session=session, models=models)

    def _model(self, name: str, session: str, sampling: Sampling, version: int) -> Model:
        endpoint = self._endpoints[name]
        if name not in self._clients:
            self._clients[name] = make_client(endpoint, self._config.serving)
        client = self._clients[name]
        if isinstance(client, ChatClient):
            return ChatModel.of(endpoint, client, session)
        return Model(
            client=client,
            tokenizer=self._tokenizers[name],
            max_model_len=endpoint.max_model_len,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            session=session,
            minimum_version=version if endpoint.trained else 0,
            chat_template_args=self._config.model.chat_template_args if endpoint.trained else {},
        )


def _fail(rollouts: list[Rollout], reason: StopReason, error: str) -> None:
    for rollout in rollouts:
        rollout.stop_reason, rollout.error, rollout.status = reason, error, rollout.counting.status
