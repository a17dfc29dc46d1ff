"""A program of one's own as the agent: it finds its session in the workspace, and each way in which it ends has its reason."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentic.coding.config import CodingConfig, agent_problems
from agentic.coding.generate import generate
from agentic.coding.programs import Program
from agentic.coding.reward import reward
from tests.agentic.coding.test_generate import ROW, Shown, text
from tests.completing import context_with
from tests.qwen3_tokenizer import qwen3_tokenizer
from vime.agent.command import Command, CommandEnd
from vime.agent.harness.outcome import Outcome, silent_end
from vime.errors import SampleError
from vime.gateway.session_manager import Parsers, SessionManager
from vime.preflight.compose import compose_run
from vime.rollout.context import Sampling
from vime.types import Sample, StopReason

ASKS = """
import json, os, sys, time, urllib.request
body = json.dumps({"model": "policy", "messages": [{"role": "user", "content": "How?"}]}).encode()
headers = {"Authorization": "Bearer " + sys.argv[2], "Content-Type": "application/json"}
reply = json.load(urllib.request.urlopen(urllib.request.Request(sys.argv[1] + "/chat/completions", body, headers)))
"""
MENDS = ASKS + "open('pkg/add.py', 'w').write(reply['choices'][0]['message']['content'])\n"
ENDS = {
    "ends well": (MENDS, "no_call", "finished", StopReason.ANSWERED, 1.0),
    "fails after its work": (MENDS + "sys.exit(3)\n", "program_failed", "finished", StopReason.MALFORMED, 1.0),
    "is killed": (ASKS + "os.kill(os.getpid(), 9)\n", "program_failed", "killed", StopReason.MALFORMED, 0.0),
    "hangs": (ASKS + "time.sleep(1000)\n", "time_used_up", "time_limit", StopReason.TIME_LIMIT, 0.0),
}
RIGHT = "def add(a, b):\n    return a + b\n"


class Script:
    """A harness for a script of Python."""

    def __init__(self, code: str) -> None:
        self._code = code

    def command(self, prompt: str, *, openai_url: str, anthropic_url: str, secret: str, folder: Path) -> Command:
        script = str(folder / "script.py")
        return Command(words=["python3", script, openai_url, secret], folder=folder, files={script: self._code})

    def outcome(self, end: CommandEnd) -> Outcome:
        return Outcome(ended_well=True, answer="done") if end.exit_code == 0 else silent_end(end)


CODE = [""]


def program(method: CodingConfig) -> Program:
    """The program that `method.agent` names."""
    assert method.limits.seconds > 0
    return Program(harness=Script(CODE[0]))


async def play(code: str, *, seconds: float) -> tuple[list[Sample], float]:
    CODE[0] = code
    words = ["+method=coding", "mode=plan", "method.prompt_style=full", f"method.limits.seconds={seconds}"]
    config = compose_run([*words, f"method.agent={__name__}.program"]).config
    sessions = SessionManager({"actor": Parsers(tool_parser="hermes")})
    models: Any = {"actor": Shown(qwen3_tokenizer(), [text(RIGHT)])}
    context = context_with(models, config=config, sessions=sessions)
    sample = Sample(prompt=ROW["problem_statement"], metadata=ROW, rollout_id=3)
    try:
        samples = await generate(context, sample, Sampling(temperature=1.0, top_p=1.0))
        return samples, (await reward(context, samples)).score
    finally:
        await sessions.stop()


@pytest.mark.slow
@pytest.mark.parametrize(("code", "ending", "program_end", "stop_reason", "score"), ENDS.values(), ids=ENDS)
async def test_each_end_has_its_reason_and_the_patch_is_judged(
    code: str, ending: str, program_end: str, stop_reason: StopReason, score: float
):
    samples, found = await play(code, seconds=8.0 if program_end == "time_limit" else 60.0)
    metadata = samples[-1].metadata
    assert (metadata["ending"], metadata["program_end"]) == (ending, program_end), metadata
    assert samples[-1].stop_reason is stop_reason and found == score
    assert sum(sum(sample.loss_mask) for sample in samples) == metadata["tokens"] > 0


@pytest.mark.slow
async def test_a_program_that_never_calls_its_model_is_run_again_and_its_words_are_in_the_error():
    with pytest.raises(SampleError, match=r"ended without a call to its model \(finished, exit code 1: .*no such agent"):
        await play("raise SystemExit('no such agent')", seconds=60.0)


@pytest.mark.parametrize(("agent", "words"), [("claude", "own, claude_code, codex"), ("nowhere.py:program", "no Python file")])
def test_an_agent_that_there_is_not_is_refused_by_its_name(agent: str, words: str):
    (problem,) = agent_problems(replace(CodingConfig(), agent=agent))
    assert problem.key == "method.agent" and problem.value == agent and words in problem.remedy
