"""One rollout of a task: the coding agent works in a workspace, then the task's own tests run there and write the reward.

All that the agent samples is trained, as in `agentic.coding`. The last sequence's metadata hold the rewards.
"""

import asyncio
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from agentic.coding.agent import CodingAgent
from agentic.coding.generate import describe_work
from agentic.coding.prompts import FULL, TINY
from agentic.harbor.config import HarborConfig
from agentic.harbor.task import TASK, HarborTask
from agentic.harbor.task_workspace import Ready, make_ready, opened, run_tests
from vime.config import PromptStyle
from vime.errors import SampleError
from vime.rollout.context import Context, Sampling
from vime.types import Reward, Sample

SCORE, REWARDS, REASON, NOT_PREPARED = "score", "rewards", "tests_reason", "not_prepared"
"""Keys in the metadata of a rollout's last sample, beside `task`: the score, the rewards by name, why the tests ended, and what
they could not install."""
SYSTEM = (
    "You carry out a task on a Linux machine with the tools that you are given, and call submit when it is done. Your commands "
    "start in the task's working folder. There is no network. Tests that you cannot see will judge the files that you leave. "
    "Call one tool at a time and wait for its result."
)
WORDINGS = {PromptStyle.full: replace(FULL, system=SYSTEM, task="{statement}"), PromptStyle.tiny: TINY}


async def generate(context: Context, sample: Sample, sampling: Sampling) -> list[Sample]:
    """One rollout: a sequence for each conversation of the agent and of its sub-agents.

    Raises SandboxError if the tests give no reward, so that the rollout is run again and earns no 0.
    """
    method, config = HarborConfig.of(context.config), context.config.workspace
    with context.clock.stopped():
        folder, readable = Path(str(sample.metadata[TASK])), tuple(method.host_variables)
        ready = await asyncio.to_thread(_ready, folder, config.cache_folder, readable)
    task = ready.task
    limits = replace(method.limits, seconds=min(method.limits.seconds, task.agent_limit))
    wording = WORDINGS[method.prompt_style]
    async with opened(ready, config, context.workspace) as box, context.session() as session:
        agent = CodingAgent(session=session, box=box, clock=context.clock, limits=limits, wording=wording)
        work = await agent.solve(task.instruction)
        diff = await box.diff()
        with context.clock.stopped(), context.trace.span("tests", kind="sandbox"):
            tested = await run_tests(box, ready, config)
    samples = session.samples(sample)
    describe_work(samples, work, diff)
    samples[-1].metadata |= {
        TASK: str(task.folder),
        SCORE: tested.score,
        REWARDS: tested.rewards,
        REASON: tested.reason,
        NOT_PREPARED: tested.not_prepared,
        "tests_seconds": tested.seconds,
        "tests_output": tested.output,
    }
    return samples


async def reward(context: Context, samples: list[Sample]) -> Reward:
    """The score that the tests wrote.

    Metrics are the shares of tasks with score 1, of tests that were ended at a limit, and of tests that wanted to install
    something that was not prepared.
    """
    metadata = samples[-1].metadata
    if SCORE not in metadata:
        raise SampleError(f'the last sample has no score of its task\'s tests: keep it as metadata["{SCORE}"]')
    score = float(metadata[SCORE])
    metrics = {
        "solved": score >= 1.0,
        "tests_at_limit": metadata[REASON] != "finished",
        "not_prepared": bool(metadata[NOT_PREPARED]),
    }
    return Reward(score=score, metrics={name: float(value) for name, value in metrics.items()})


@lru_cache(maxsize=256)
def _ready(folder: Path, cache_folder: str | None, host_variables: tuple[str, ...]) -> Ready:
    """A task of this process's rollouts, read once."""
    return make_ready(HarborTask.read(folder, host_variables=host_variables), cache_folder=cache_folder)
