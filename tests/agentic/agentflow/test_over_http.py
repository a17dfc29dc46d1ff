"""AgentFlow's planner behind OpenAI's client: the same samples as natively."""

import asyncio
from typing import Any

import pytest

from agentic.agentflow.config import TrainedTurns
from agentic.agentflow.over_http import generate
from tests.agentic.agentflow.test_generate import Script, context_of, frozen, good_planner, run, template
from vime.rollout.context import Sampling

pytestmark = pytest.mark.slow
"""It imports the client."""


@pytest.mark.parametrize("settings", [{}, {"trained_turns": TrainedTurns.next_step}, {"max_planner_tokens": 8}])
def test_the_samples_are_those_of_the_native_agent(settings: dict[str, Any]):
    native, *_ = run(**settings)

    async def over_http() -> Any:
        context = context_of(Script(good_planner), Script(frozen), **settings)
        samples = await generate(context, template(), Sampling(temperature=1.0, top_p=1.0))
        await context.sessions.stop()
        return samples

    found = asyncio.run(over_http())
    for sample, other in zip(found, native, strict=True):
        assert list(sample.tokens) == list(other.tokens) and list(sample.loss_mask) == list(other.loss_mask)
        assert list(sample.rollout_log_probs) == list(other.rollout_log_probs)
        assert sample.stop_reason is other.stop_reason
        assert {key: sample.metadata[key] for key in other.metadata} == other.metadata
