"""`mode=try`: one training prompt through `generate` and `reward` on real servers, turn by turn on the screen.

No trainer is started: the served models are the checkpoints as they are. The agent runs in this process, so its prints appear
here and `breakpoint()` works. A hook that fails is not called again.

With `trial.engine=scripted` no server is started either: the models' replies are scripted, so that an agent's code runs within
seconds. Tokenizers, chat templates, parsers, limits and the retrieval service are real.
"""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vime.config import RolloutDetail, RunConfig, ServingConfig, TrialEngine
from vime.files.record import Recorder
from vime.hooks import load_hook
from vime.model.load_tokenizer import load_tokenizer
from vime.model.pieces import TokenPieces
from vime.preflight.compose import Composed
from vime.rehearsal.script import Rehearsal, script_of
from vime.rehearsal.scripted_client import ScriptedClients
from vime.report.run_directory import RunDirectory
from vime.report.transcript import ShownCall, Transcript
from vime.runtime import Runtime
from vime.serving.clients import make_client
from vime.serving.endpoint import Endpoint
from vime.serving.flags import endpoint_of
from vime.types import Group, Integers, Message, Turn
from vime.workers.agents import launched
from vime.workers.served import MakeClient
from vime.workers.worker import RolloutWorker

PATIENT_SECONDS = 24 * 3600.0
"""Time for which a hook may block the event loop; in a debugger it does so for as long as a person thinks."""


def try_once(composed: Composed) -> bool:
    """Runs one rollout and shows it; returns False if a hook raised an exception."""
    config = _for_one_rollout(composed.config)
    script = script_of(config) if config.trial.engine is TrialEngine.scripted else None
    source = load_hook(config.data.source)(config)
    directory = RunDirectory.create(config, composed.overrides)
    with Transcript(config, directory.path) as transcript:
        group = asyncio.run(_rollout(config, script, source, directory.path, transcript))
        pieces = TokenPieces.of(config.model.checkpoint)
        recorder = Recorder(RolloutDetail.turns, pieces.text if pieces is not None else None)
        transcript.end(group, recorder)
        transcript.file(directory.write_rollouts(0, [group], recorder=recorder))
    return all(rollout.counting.in_baseline for rollout in group.rollouts)


async def _rollout(config: RunConfig, script: Rehearsal | None, source: Any, run_dir: Path, transcript: Transcript) -> Group:
    async with AsyncExitStack() as stack:
        started = config if script is None else replace(config, serving=replace(config.serving, models={}))
        agents = None
        if script is None or config.retrieval.is_there:
            runtime = stack.enter_context(Runtime(started, say=transcript.say))
            agents = await stack.enter_async_context(launched(started, run_dir, runtime, policy=None))
            await agents.served(transcript.say)
        if script is None:
            assert agents is not None
            endpoints = agents.serving.endpoints()
            made: MakeClient = ScriptedClients(config) if config.rehearse else make_client
        else:
            endpoints = {name: endpoint_of(config, name) for name in config.serving.models}
            made = ScriptedClients(config, script, has_servers=False)
        clients = heard_clients(transcript.call, made)
        retrieval = agents.retrieval if agents is not None else None
        worker = RolloutWorker(config, endpoints, make_client=clients, retrieval=retrieval)
        await worker.ready()
        prompt = source.next()
        transcript.prompt(prompt)
        try:
            return await worker.run_group(prompt=prompt, slot=0, num_rollouts=1, version=0)
        finally:
            await worker.close()


def _for_one_rollout(config: RunConfig) -> RunConfig:
    """The configuration with a group of one rollout that is not repeated."""
    rollout = replace(
        config.rollout,
        num_samples_per_prompt=1,
        num_oversampled_samples_per_prompt=0,
        max_retries=0,
        max_reward_retries=0,
        max_blocked_seconds=PATIENT_SECONDS,
    )
    return replace(config, rollout=rollout, logger=replace(config.logger, trace_share=1.0))


@dataclass(slots=True)
class HeardClient:
    """Wraps a `TokenClient` or `ChatClient` and reports its calls to `tell`."""

    client: Any
    name: str
    tokenizer: Any
    tell: Callable[[ShownCall], None]
    _last: list[int] = field(default_factory=list)

    async def generate(self, token_ids: Integers, **options: Any) -> Turn:
        """See `TokenClient.generate`."""
        turn = await self.client.generate(token_ids, **options)
        prompt = list(token_ids)
        num_known = next((n for n, (a, b) in enumerate(zip(prompt, self._last)) if a != b), min(len(prompt), len(self._last)))
        self._last = [*prompt, *turn.output_ids]
        self.tell(
            ShownCall(
                model=self.name,
                prompt=self._text(prompt[num_known:]),
                reply=self._text(list(turn.output_ids)),
                turn=turn,
                num_prompt_tokens=len(prompt),
                num_known_tokens=num_known,
            )
        )
        return turn

    async def chat(self, messages: list[Message], **options: Any) -> Turn:
        """See `ChatClient.chat`."""
        turn = await self.client.chat(messages, **options)
        prompt = "\n".join(f"{message.get('role')}: {message.get('content')}" for message in messages)
        self.tell(ShownCall(model=self.name, prompt=prompt, reply=str(turn.message), turn=turn, num_prompt_tokens=None))
        return turn

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)

    def _text(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=False)


def heard_clients(tell: Callable[[ShownCall], None], make_client: MakeClient = make_client) -> MakeClient:
    """The maker of clients of endpoints for `ServedModels`, each with a listener."""

    def make(endpoint: Endpoint, config: ServingConfig) -> HeardClient:
        tokenizer = load_tokenizer(endpoint.tokenizer) if endpoint.chat is None else None
        return HeardClient(make_client(endpoint, config), endpoint.name, tokenizer, tell)

    return make
