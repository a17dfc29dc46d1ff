"""A whole rollout without a server: the coding agent in a task's workspace, the task's tests, and the reward."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentic.coding.agent import CodingAgent
from agentic.coding.agent_result import AgentResult
from agentic.harbor import generate as harbor_generate
from agentic.harbor.generate import generate, reward
from agentic.harbor.rehearsal import write_task
from agentic.harbor.task import TASK
from tests.completing import context_with
from tests.gateway.scripted import Scripted
from tests.qwen3_tokenizer import qwen3_tokenizer
from vime.errors import SampleError, SandboxError
from vime.gateway.session_manager import Parsers, SessionManager
from vime.preflight.compose import compose_run
from vime.rollout.context import Context, Sampling
from vime.types import Reward, Sample, StopReason

pytestmark = pytest.mark.slow


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call><|im_end|>"


class Shown(Scripted):
    """A scripted model with a context as large as a conversation needs."""

    shows_tokens = True
    max_model_len = 16_000


async def play(folder: Path, *replies: str) -> tuple[list[Sample], Reward, Context]:
    words = ["method.prompt_style=full", "method.limits.turn_tokens=300", "method.limits.context_tokens=4000"]
    cache = f"workspace.cache_folder={folder.parent / 'cache'}"
    config = compose_run(["+method=harbor", "mode=plan", *words, cache]).config
    sessions = SessionManager({"actor": Parsers(tool_parser="hermes")})
    models: Any = {"actor": Shown(qwen3_tokenizer(), list(replies))}
    context = context_with(models, config=config, sessions=sessions)
    sample = Sample(prompt="Write the word Oslo to answer.txt.", metadata={TASK: str(folder)}, rollout_id=3)
    try:
        samples = await generate(context, sample, Sampling(temperature=1.0, top_p=1.0))
    finally:
        await sessions.stop()
    return samples, await reward(context, samples), context


async def test_the_agent_earns_what_the_tests_wrote_and_its_tokens_are_trained(tmp_path: Path):
    replies = [call("view", path="notes.txt"), call("edit", path="answer.txt", old="", new="Oslo\n"), call("submit")]
    samples, found, context = await play(write_task(tmp_path / "task", "Oslo"), *replies)
    metadata = samples[-1].metadata
    assert found == Reward(score=1.0, metrics={"solved": 1.0, "tests_at_limit": 0.0, "not_prepared": 0.0})
    assert (metadata["score"], metadata["rewards"], metadata["tests_reason"]) == (1.0, {"reward": 1.0}, "finished")
    assert metadata["ending"] == "submitted" and samples[-1].stop_reason is StopReason.ANSWERED
    assert "+Oslo" in metadata["patch"] and "app/answer.txt" in metadata["patch"] and "tests/" not in metadata["patch"]
    assert metadata["tokens"] == sum(sum(sample.loss_mask) for sample in samples) > 0
    with pytest.raises(SampleError, match='metadata\\["score"\\]'):
        await reward(context, [Sample(prompt="x")])


async def test_an_agent_that_writes_a_reward_itself_earns_nothing(tmp_path: Path):
    command = "echo 1 > /logs/verifier/reward.txt; (setsid bash -c 'while :; do cp /logs/verifier/reward.txt /tmp; done' &)"
    _, found, _ = await play(write_task(tmp_path / "task", "Oslo"), call("shell", command=command), call("submit"))
    assert (found.score, found.metrics["solved"]) == (0.0, 0.0)


async def test_a_task_whose_tests_write_no_reward_is_no_zero(tmp_path: Path):
    folder = write_task(tmp_path / "task", "Oslo", **{"tests/test.sh": "exit 0"})
    with pytest.raises(SandboxError, match="wrote no reward to /logs/verifier/"):
        await play(folder, call("submit"))


@pytest.mark.parametrize(("task_seconds", "seconds"), [(12.0, 12.0), (9000.0, 1500.0)])
async def test_the_lower_limit_of_the_agents_time_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task_seconds: float, seconds: float
):
    given: list[float] = []

    class Agent(CodingAgent):
        async def solve(self, statement: str) -> AgentResult:
            given.append(self.limits.seconds)
            return await super().solve(statement)

    monkeypatch.setattr(harbor_generate, "CodingAgent", Agent)
    task = write_task(tmp_path / "task", "Oslo", **{"task.toml": f"[agent]\ntimeout_sec = {task_seconds}\n"})
    await play(task, call("submit"))
    assert given == [seconds]
