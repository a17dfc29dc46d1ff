"""The coding agent's rollout: an agent works on a repository in a workspace of its own, and its changes are taken as a patch.

All that it samples is trained: its own conversation, those of its sub-agents, and the chains before each summary are sequences of
one rollout. The last sequence's metadata hold the patch, how the agent ended, and its row, which the reward needs.
"""

import asyncio
from collections import Counter

from agentic.coding.agent import CodingAgent
from agentic.coding.agent_result import AgentResult, Ending
from agentic.coding.config import OWN, CodingConfig
from agentic.coding.programs import Program, program_of, run_program
from agentic.coding.prompts import WORDINGS
from agentic.coding.repository import prepare_repository
from agentic.coding.reward import PATCH, TASK, row_of
from agentic.coding.task import Task
from vime.agent.workspace.contract import WorkspaceLike
from vime.agent.workspace.results import Diff
from vime.gateway.session import AgentSession
from vime.rollout.context import Context, Sampling
from vime.types import Sample, StopReason

STOP_REASONS = {
    Ending.SUBMITTED: StopReason.ANSWERED,
    Ending.NO_CALL: StopReason.ANSWERED,
    Ending.TURNS_USED_UP: StopReason.TURN_LIMIT,
    Ending.TOKENS_USED_UP: StopReason.TOKEN_LIMIT,
    Ending.TIME_USED_UP: StopReason.TIME_LIMIT,
    Ending.PROGRAM_FAILED: StopReason.MALFORMED,
}


async def generate(context: Context, sample: Sample, sampling: Sampling) -> list[Sample]:
    """One rollout: a sequence for each conversation of the agent and of its sub-agents."""
    method, task = CodingConfig.of(context.config), Task.of_sample(sample)
    prepared = await asyncio.to_thread(prepare_repository, task, cache_folder=context.config.workspace.cache_folder)
    program = None if method.agent == OWN else program_of(method)
    async with context.workspace(prepared, binds=program.binds if program else {}) as box, context.session() as session:
        work = await _work(context, method, program, session, box, task.problem_statement)
        diff = await box.diff()
    samples = session.samples(sample)
    describe_work(samples, work, diff)
    samples[-1].metadata[TASK] = row_of(sample)
    return samples


def describe_work(samples: list[Sample], work: AgentResult, diff: Diff) -> None:
    """Puts the patch, the agent's ending and the numbers of its work into the last sample of a rollout."""
    samples[-1].stop_reason = STOP_REASONS[work.ending]
    samples[-1].metadata |= {
        PATCH: diff.patch.decode(errors="surrogateescape"),
        "patch_reason": diff.reason,
        "ending": work.ending.value,
        "segments": dict(Counter(str(sample.metadata.get("kind", "main")) for sample in samples)),
        "tokens": sum(sample.num_trained_tokens for sample in samples),
        **work.about,
    }


async def _work(
    context: Context, method: CodingConfig, program: Program | None, session: AgentSession, box: WorkspaceLike, statement: str
) -> AgentResult:
    if program is not None:
        return await run_program(context, method, program, session, box, statement)
    wording = WORDINGS[method.prompt_style]
    agent = CodingAgent(session=session, box=box, clock=context.clock, limits=method.limits, wording=wording)
    return await agent.solve(statement)
