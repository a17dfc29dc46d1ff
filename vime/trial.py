"""`mode=try`: one training prompt through `generate` and `reward` on real servers, turn by turn on the screen.

No trainer is started: the served models are the checkpoints as they are. The agent runs in this process, so its prints appear
here and `breakpoint()` works. A hook that fails is not called again.
"""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from vime.config import RolloutDetail, RunConfig
from vime.files.record import Recorder
from vime.hooks import load_hook
from vime.model.pieces import TokenPieces
from vime.preflight.compose import Composed
from vime.rehearsal.scripted_client import ScriptedClients
from vime.report.run_directory import RunDirectory
from vime.report.transcript import Transcript
from vime.rollout.agents import launched
from vime.rollout.heard import heard_clients
from vime.rollout.worker import RolloutWorker
from vime.runtime import Runtime
from vime.serving.clients import make_client
from vime.types import Group

PATIENT_SECONDS = 24 * 3600.0
"""In a debugger a hook blocks the event loop for as long as a person thinks."""


def try_once(composed: Composed) -> bool:
    """Runs one rollout and shows it; returns whether it counts, which a hook that raises prevents."""
    config = _for_one_rollout(composed.config)
    source = load_hook(config.data.source)(config)
    directory = RunDirectory.create(config, composed.overrides)
    with Transcript(config, directory.path) as transcript:
        group = asyncio.run(_rollout(config, source, directory.path, transcript))
        pieces = TokenPieces.of(config.model.checkpoint)
        recorder = Recorder(RolloutDetail.turns, pieces.text if pieces is not None else None)
        transcript.end(group, recorder)
        transcript.file(directory.write_rollouts(0, [group], recorder=recorder))
    return all(rollout.counting.in_baseline for rollout in group.rollouts)


async def _rollout(config: RunConfig, source: Any, run_dir: Path, transcript: Transcript) -> Group:
    with Runtime(config, say=transcript.say) as runtime:
        async with launched(config, run_dir, runtime, policy=None) as agents:
            await agents.served(transcript.say)
            endpoints = agents.serving.endpoints()
            made = ScriptedClients(config) if config.rehearse else make_client
            clients = heard_clients(transcript.call, made)
            worker = RolloutWorker(config, endpoints, make_client=clients, retrieval=agents.retrieval)
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
