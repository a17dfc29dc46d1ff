"""Clients of OpenAI and Anthropic as programs of their own: their tasks end well, and what they did is trained exactly once.

`make clients` runs these and others, each in an environment of its own, also on a real server.
"""

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[2] / "tools"))

from client_cases import CASES, Case
from client_engine import ScriptedModel
from client_environments import ANTHROPIC, OPENAI
from clients import table, try_case

from tests import chosen
from vime.gateway.gateway import Gateway

pytestmark = pytest.mark.slow
"""They import vLLM's parsers."""

HERE = [case for case in CASES if case.environment in (OPENAI, ANTHROPIC)]


CONTAINED = {
    *(("openai, async", protocol) for protocol in ("Chat Completions", "Responses")),
    *(("openai's tool runner", "Responses"), ("anthropic's tool runner", "Messages"), ("openai, sync", "Responses")),
    *(("openai's tool runner, streamed", "Responses"), ("anthropic, sync", "Messages")),
    *(("openai, streamed", "Chat Completions"), ("openai, structured output, refused", "Chat Completions")),
}
"""Cases whose parts stand in others as well; only the long tests run each."""


@pytest.mark.parametrize(
    "case",
    chosen.parameters(HERE, [case for case in HERE if (case.name, case.protocol) in CONTAINED]),
    ids=lambda case: f"{case.name}, {case.protocol}",
)
async def test_a_task_of_a_real_client_ends_well_and_each_token_is_trained_once(case: Case, gateway: Gateway, tokenizer: Any):
    def make_model(case: Case, folder: Path) -> ScriptedModel:
        return ScriptedModel(tokenizer, case.script, folder=folder, max_model_len=case.max_model_len)

    verdict = await try_case(case, gateway, make_model, engine="scripted", here=True)
    assert verdict.is_good, verdict
    assert verdict.turns == sum(len(part.replies) for part in case.script) or "structured" in case.name
    assert "| ended well |" in table([verdict]) and "| every token once |" in table([verdict])
