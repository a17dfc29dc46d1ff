"""Tools and sandboxes: a limit, retries and a count for each outcome; a failing tool never ends the rollout."""

import asyncio
import threading
from typing import Any

import pytest

from vime.config import RolloutConfig, RunConfig
from vime.errors import SandboxError
from vime.rollout.context import Context
from vime.rollout.tool import Outcome, run_sandbox, run_tool


@pytest.fixture
def context() -> Context:
    limits = RolloutConfig(tool_timeout_seconds=0.2, sandbox_timeout_seconds=0.2, max_tool_retries=1, max_sandbox_retries=1)
    return Context(config=RunConfig(rollout=limits), evaluation=False, session="s")


class Flaky:
    """Fails `times` times with `error`, then answers."""

    def __init__(self, error: Exception, times: int) -> None:
        self.error, self.times, self.calls = error, times, 0

    async def __call__(self, value: int) -> int:
        self.calls += 1
        if self.calls <= self.times:
            raise self.error
        return value + 1

    async def call(self, value: int) -> int:
        return await self(value)


async def hang(value: int) -> int:
    await asyncio.sleep(60)
    return value


async def test_a_tool_that_answers_on_the_second_try(context: Context):
    result = await run_tool(context, "add", Flaky(ConnectionError("busy"), 1).call, 1)
    assert (result.outcome, result.output, result.num_retries) == (Outcome.ANSWERED, 2, 1)
    assert dict(context.trace.counts) == {"tool_calls": 1, "tool_answered": 1, "tool_retries": 1}
    assert context.trace.seconds["tool"] >= 0


@pytest.mark.parametrize(
    ("tool", "outcome", "words", "num_retries"),
    [
        (Flaky(ConnectionError("busy"), 9).call, Outcome.RAISED, "ConnectionError: busy", 1),
        (Flaky(ValueError("no such city"), 9).call, Outcome.REFUSED, "no such city", 0),
        (hang, Outcome.TIMED_OUT, "rollout.tool_timeout_seconds=0.2", 1),
        (lambda: 1, Outcome.REFUSED, "TypeError", 0),
    ],
)
async def test_a_tool_that_fails_is_something_to_tell_the_agent(
    context: Context, tool: Any, outcome: Outcome, words: str, num_retries: int
):
    result = await run_tool(context, "tool", tool, 1)
    assert (result.outcome, result.num_retries) == (outcome, num_retries)
    assert words in result.error and context.trace.counts[f"tool_{outcome.value}"] == 1


async def test_blocking_tools_hold_up_neither_the_loop_nor_each_other(context: Context):
    release = threading.Event()
    stuck = [asyncio.create_task(run_tool(context, "stuck", release.wait)) for _ in range(64)]
    await asyncio.sleep(0)
    result = await run_tool(context, "quick", lambda: "answer")
    assert result.output == "answer"
    assert {(await task).outcome for task in stuck} == {Outcome.TIMED_OUT}
    release.set()


async def test_a_sandbox_that_fails_for_good_ends_the_rollout_as_the_infrastructures_fault(context: Context):
    assert await run_sandbox(context, "boot", Flaky(OSError("no room"), 1).call, 1) == 2
    with pytest.raises(SandboxError, match="boot: OSError: no room"):
        await run_sandbox(context, "boot", Flaky(OSError("no room"), 2).call, 1)
    with pytest.raises(SandboxError, match=r"rollout\.sandbox_timeout_seconds=0\.2"):
        await run_sandbox(context, "boot", hang, 1)
    assert context.trace.counts == {"sandbox_calls": 3, "sandbox_retries": 3}
