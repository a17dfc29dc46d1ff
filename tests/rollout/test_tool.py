"""Tools and sandboxes: a limit, retries and a count for each outcome; a failing tool never ends the rollout."""

import asyncio
import threading
from typing import Any

import pytest

from vime.agent.sandbox import NUM_PLACES, Sandbox, SandboxResult
from vime.config import RolloutConfig, RunConfig
from vime.errors import SandboxError, ToolLimitError
from vime.rollout.context import Context
from vime.rollout.tool import Tool, ToolBox, ToolOutcome, run_sandbox, run_tool


@pytest.fixture
def context() -> Context:
    limits = RolloutConfig(tool_timeout_seconds=0.2, sandbox_timeout_seconds=0.2, max_tool_retries=1, max_sandbox_retries=1)
    return Context(config=RunConfig(rollout=limits), evaluation=False, session_id="s")


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
    assert (result.outcome, result.output, result.num_retries) == (ToolOutcome.ANSWERED, 2, 1)
    assert dict(context.trace.counts) == {"tool_calls": 1, "tool_answered": 1, "tool_retries": 1}
    assert context.trace.seconds["tool"] >= 0


async def test_while_a_tool_waits_for_a_lost_server_its_time_does_not_run(context: Context):
    async def wait(value: int) -> int:
        with context.clock.stopped():
            await asyncio.sleep(0.5)
        return value

    assert (await run_tool(context, "ask", wait, 1)).outcome is ToolOutcome.ANSWERED


@pytest.mark.parametrize(
    ("tool", "outcome", "words", "num_retries"),
    [
        (Flaky(ConnectionError("busy"), 9).call, ToolOutcome.RAISED, "ConnectionError: busy", 1),
        (Flaky(ValueError("no such city"), 9).call, ToolOutcome.REFUSED, "no such city", 0),
        (hang, ToolOutcome.TIMED_OUT, "rollout.tool_timeout_seconds=0.2", 1),
        (lambda: 1, ToolOutcome.REFUSED, "TypeError", 0),
    ],
)
async def test_a_tool_that_fails_is_something_to_tell_the_agent(
    context: Context, tool: Any, outcome: ToolOutcome, words: str, num_retries: int
):
    result = await run_tool(context, "tool", tool, 1)
    assert (result.outcome, result.num_retries) == (outcome, num_retries)
    assert words in result.error and context.trace.counts[f"tool_{outcome.value}"] == 1


@pytest.mark.parametrize("tool", [Flaky(ValueError(), 0), lambda value: Flaky(ValueError(), 0).call(value)])
async def test_what_a_tool_returns_is_awaited_whatever_it_is_written_as(context: Context, tool: Any):
    result = await run_tool(context, "add", tool, 1)
    assert (result.outcome, result.output) == (ToolOutcome.ANSWERED, 2)


async def test_what_a_tool_returns_is_awaited_within_its_time(context: Context):
    result = await run_tool(context, "slow", lambda: hang(1))
    assert result.outcome is ToolOutcome.TIMED_OUT


async def test_blocking_tools_hold_up_neither_the_loop_nor_each_other(context: Context):
    release = threading.Event()
    stuck = [asyncio.create_task(run_tool(context, "stuck", release.wait)) for _ in range(64)]
    await asyncio.sleep(0)
    result = await run_tool(context, "quick", lambda: "answer")
    assert result.output == "answer"
    assert {(await task).outcome for task in stuck} == {ToolOutcome.TIMED_OUT}
    release.set()


async def test_a_sandbox_that_fails_for_good_ends_the_rollout_as_the_infrastructures_fault(context: Context):
    assert await run_sandbox(context, "boot", Flaky(OSError("no room"), 1).call, 1) == 2
    with pytest.raises(SandboxError, match="boot: OSError: no room"):
        await run_sandbox(context, "boot", Flaky(OSError("no room"), 2).call, 1)
    with pytest.raises(SandboxError, match=r"rollout\.sandbox_timeout_seconds=0\.2"):
        await run_sandbox(context, "boot", hang, 1)
    assert context.trace.counts == {"sandbox_calls": 3, "sandbox_retries": 3}


class Idle(Sandbox):
    """Keeps what it was given to run."""

    def __init__(self) -> None:
        self.given: list[str] = []

    async def run(self, code: str, *, stdin: str = "") -> SandboxResult:
        async with self.place():
            self.given.append(code)
        return SandboxResult(stdout=code, stderr="", exit_code=0, reason="finished", seconds=0.0)

    async def hang(self) -> None:
        await asyncio.sleep(60)

    async def hold(self, release: asyncio.Event) -> None:
        async with self.place():
            await release.wait()


async def test_a_sandbox_waits_for_its_place_outside_of_its_time(context: Context):
    box, release = Idle(), asyncio.Event()
    others = [asyncio.create_task(Idle().hold(release)) for _ in range(NUM_PLACES)]
    waiting, given_up = (asyncio.create_task(run_sandbox(context, "python", box.run, code)) for code in ("first", "second"))
    await asyncio.sleep(1.0)
    assert not waiting.done() and not box.given
    given_up.cancel()
    release.set()
    assert (await waiting).stdout == "first"
    with pytest.raises(asyncio.CancelledError):
        await given_up
    await asyncio.gather(*others)
    assert box.given == ["first"] and context.trace.counts == {"sandbox_calls": 2}
    assert context.trace.seconds["queue"] >= 0.9 and context.trace.seconds["sandbox"] < 0.9


async def test_the_time_of_a_sandbox_begins_with_its_place(context: Context):
    box = Idle()
    for _ in range(NUM_PLACES + 1):
        with pytest.raises(SandboxError, match=r"rollout\.sandbox_timeout_seconds=0\.2"):
            await run_sandbox(context, "hang", box.hang)
    assert (await run_sandbox(context, "python", box.run, "next")).stdout == "next"


def call_of(name: str, arguments: str, *, number: int = 0) -> dict[str, Any]:
    return {"id": f"call-{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def add(first: int, second: int = 1) -> int:
    """Adds two numbers."""
    return first + second


async def test_a_function_is_a_tool_whose_schema_says_its_arguments_and_whose_results_are_messages(context: Context):
    async def greet(name: str) -> dict[str, str]:
        return {"hello": name}

    toolbox = ToolBox(context, [add, greet])
    (first, second) = toolbox.schemas
    assert first["function"]["name"] == "add" and first["function"]["description"] == "Adds two numbers."
    assert first["function"]["parameters"]["required"] == ["first"] and second["function"]["name"] == "greet"
    calls = [call_of("greet", '{"name": "Ada"}', number=1), call_of("add", '{"first": 2}', number=2)]
    assert await toolbox.results(calls) == [
        {"role": "tool", "name": "greet", "tool_call_id": "call-1", "content": '{"hello":"Ada"}'},
        {"role": "tool", "name": "add", "tool_call_id": "call-2", "content": "3"},
    ]
    assert context.trace.counts["tool_answered"] == 2 and toolbox.num_calls == 2


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("pay", "{}", "there is no tool pay; there are: add"),
        ("add", "[1]", "are not a JSON object"),
        ("add", "{no", "are not a JSON object"),
        ("add", '{"first": "x"}', "first: Input should be a valid integer"),
        ("add", '{"first": 1, "third": 2}', "third: Unexpected keyword argument"),
    ],
)
async def test_a_call_that_cannot_be_made_is_answered_with_the_reason(context: Context, name: str, arguments: str, words: str):
    (message,) = await ToolBox(context, [add]).results([call_of(name, arguments)])
    assert message["content"].startswith("Error: ") and words in message["content"]


@pytest.mark.parametrize(("repeatable", "num_calls"), [(True, 2), (False, 1)])
async def test_only_a_tool_that_may_be_repeated_is_called_again(context: Context, repeatable: bool, num_calls: int):
    flaky = Flaky(ConnectionError("busy"), 1)
    tool = Tool.from_schema({"function": {"name": "add"}}, flaky.call, repeatable=repeatable)
    (message,) = await ToolBox(context, [tool]).results([call_of("add", '{"value": 1}')])
    assert flaky.calls == num_calls and message["content"] == ("2" if repeatable else "Error: ConnectionError: busy")


async def test_a_tool_may_have_a_time_limit_of_its_own(context: Context):
    tool = Tool(name="hang", call=hang, parameters={"type": "object"}, seconds=0.01)
    (message,) = await ToolBox(context, [tool]).results([call_of("hang", '{"value": 1}')])
    assert "ran longer than" in message["content"] and context.trace.counts["tool_timed_out"] == 1


async def test_more_calls_than_are_allowed_end_the_rollout_before_one_is_made(context: Context):
    toolbox = ToolBox(context, [add], max_calls=2)
    await toolbox.results([call_of("add", '{"first": 1}')])
    with pytest.raises(ToolLimitError, match="3 tool calls, and 2 are allowed"):
        await toolbox.results([call_of("add", '{"first": 1}')] * 2)
    assert context.trace.counts["tool_calls"] == 1


def test_a_function_without_a_json_schema_is_refused():
    def odd(value: threading.Thread) -> None:
        pass

    with pytest.raises(ValueError, match="cannot be a tool"):
        Tool.of(odd)
