"""An agent of Strands in a workspace: it calls its model and its tool, and each way in which it ends has its reason."""

import os
from typing import Any

import pytest

from agentic.retool.reward import reward
from agentic.retool.strands_agent.generate import DEFAULT_PYTHON, PYTHON, generate
from tests.agentic.coding.test_generate import Shown, call, text
from tests.completing import context_with
from tests.qwen3_tokenizer import qwen3_tokenizer
from vime.gateway.session_manager import Parsers, SessionManager
from vime.preflight.compose import compose_run
from vime.rollout.context import Sampling
from vime.types import Sample, StopReason

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not os.path.exists(os.environ.get(PYTHON, str(DEFAULT_PYTHON))),
        reason='no environment with Strands: run `python tools/clients.py --only "Strands$"`',
    ),
]
TOOL, CODE = "execute_python_code", "import os; print(6 * 7, os.getuid() == 0)"


async def play(*replies: str, most_turns: int = 5) -> tuple[list[Sample], float]:
    config = compose_run(["+experiment=strands_qwen3_8b", "mode=plan", f"method.max_calls={most_turns}"]).config
    sessions, model = SessionManager({"actor": Parsers(tool_parser="hermes")}), Shown(qwen3_tokenizer(), list(replies))
    models: Any = {"actor": model}
    context = context_with(models, config=config, sessions=sessions)
    sample = Sample(prompt=[{"role": "user", "content": "What is 6 times 7?"}], label=["42"])
    try:
        samples = await generate(context, sample, Sampling(temperature=1.0, top_p=1.0))
        for made in samples:
            made.label = sample.label
        return samples, (await reward(context, samples)).score
    finally:
        await sessions.stop()


async def test_the_tool_runs_in_the_workspace_and_the_box_is_scored():
    samples, score = await play(call(TOOL, code=CODE), text("\\boxed{42}"))
    assert score == 1.0 and samples[-1].stop_reason is StopReason.ANSWERED and samples[-1].metadata["calls"] == {"finished": 1}
    assert "42 False" in qwen3_tokenizer().decode(samples[-1].tokens), "what the tool printed, not as root"
    said = [call(TOOL, code=CODE), text("\\boxed{42}")]
    assert sum(sum(sample.loss_mask) for sample in samples) == sum(len(qwen3_tokenizer().encode(reply)) for reply in said)


async def test_at_its_limit_of_turns_it_ends_with_its_last_complete_turn():
    samples, score = await play(*[call(TOOL, code="print(1)")] * 3, most_turns=2)
    assert samples[-1].stop_reason is StopReason.TURN_LIMIT and samples[-1].metadata["calls"] == {"finished": 2}
    assert score == pytest.approx(-1.0)
