"""The tool box: built-in tools and users' own by path, each with its limit, retries, cache and counters."""

import asyncio
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

from agentic.agentflow.tools.config import ToolConfig
from agentic.agentflow.tools.tool import Tool
from agentic.agentflow.tools.toolbox import BUILT_IN, PlannerTools, load_tool, tool_problems
from vime.config import MethodConfig, Mode, RolloutConfig, RunConfig, ServedModelConfig, ServingConfig
from vime.errors import ConfigError, Problem, SandboxError
from vime.rollout.context import Context
from vime.rollout.tool import ToolOutcome

OWN_TOOL = '''
from agentic.agentflow.tools.tool import Tool


class Reverse(Tool):
    """Turns a text around."""

    name = "reverse"
    title = "Text_Reverser_Tool"
    description = "Reverses a text."

    async def execute(self, context, query):
        context.trace.count("reversed")
        if not query:
            raise ValueError("nothing to reverse")
        return query[::-1] + self.config.options.get("end", "")
'''


@pytest.fixture
def run_config() -> RunConfig:
    """Short limits and one frozen model."""
    rollout = RolloutConfig(tool_timeout_seconds=30.0, max_tool_retries=1)
    models = {"actor": ServedModelConfig(trained=True), "base": ServedModelConfig()}
    return RunConfig(rollout=rollout, serving=ServingConfig(models=models))


@pytest.fixture
def context(run_config: RunConfig) -> Context:
    """The context of a rollout."""
    return Context(config=run_config, evaluation=False, session_id="s")


@pytest.fixture
def own_file(tmp_path: Path) -> str:
    """A tool in a file outside the repository."""
    (tmp_path / "my_tool.py").write_text(OWN_TOOL)
    return f"{tmp_path / 'my_tool.py'}:Reverse"


def method_with(run: RunConfig, tools: dict[str, ToolConfig]) -> RunConfig:
    """The configuration of a method that has tools."""

    class WithTools(MethodConfig):
        """`tools` as a method's schema has it."""

    run.method = WithTools(name="m")
    object.__setattr__(run.method, "tools", tools)
    return run


def test_every_built_in_tool_is_named_as_it_is_called_and_described():
    for name in BUILT_IN:
        tool = load_tool(name, ToolConfig())
        assert isinstance(tool, type) and issubclass(tool, Tool)
        assert tool.name == name and tool.title and tool.description and tool.demo_commands and list(tool.input) == ["query"]


async def test_a_users_tool_by_path_runs_and_is_counted(own_file: str, context: Context):
    box = PlannerTools({"reverse": ToolConfig(path=own_file, options={"end": "!"})}, context.config)
    result = await box.call(context, "reverse", "abc")
    assert (result.outcome, result.output) == (ToolOutcome.ANSWERED, "cba!")
    assert box.metadata()["reverse"]["description"] == "Reverses a text."
    assert context.trace.counts == {"tool_reverse_calls": 1, "reversed": 1, "tool_calls": 1, "tool_answered": 1}


async def test_a_wrong_query_is_a_failure_that_can_be_shown(own_file: str, context: Context):
    box = PlannerTools({"reverse": ToolConfig(path=own_file)}, context.config)
    result = await box.call(context, "reverse", "")
    assert result.outcome is ToolOutcome.REFUSED and "nothing to reverse" in result.error
    assert context.trace.counts["tool_reverse_failures"] == 1 and context.trace.counts["reversed"] == 1


@pytest.mark.parametrize("text", ["reverse", " Reverse ", "Text_Reverser_Tool", "text reverser tool", "`reverse`", "**Reverse**"])
def test_a_planner_may_spell_a_tool_in_its_way(text: str, own_file: str, run_config: RunConfig):
    assert PlannerTools({"reverse": ToolConfig(path=own_file)}, run_config).find(text) == "reverse"


@pytest.mark.parametrize("text", ["", "rev", "reverse or search", "__import__('os')"])
def test_an_unknown_tool_is_none(text: str, own_file: str, run_config: RunConfig):
    assert PlannerTools({"reverse": ToolConfig(path=own_file)}, run_config).find(text) is None


class Counted(Tool):
    """Says how often it was asked; behaves as `options.mode` says."""

    name = "counted"
    description = "Counts."
    deterministic = True
    asked = 0

    async def execute(self, context: Context, query: str) -> str:
        type(self).asked += 1
        match self.config.options.get("mode"):
            case "hang":
                await asyncio.sleep(60)
            case "raise":
                raise ConnectionError("down")
            case "crash":
                raise SandboxError("no room")
            case "once" if type(self).asked == 1:
                raise ConnectionError("busy")
        return f"{query} {type(self).asked}"


def counted(run: RunConfig, **settings: Any) -> PlannerTools:
    """A box with that tool, which was not asked yet."""
    Counted.asked = 0
    box = PlannerTools({}, run)
    box._tools["counted"] = Counted(ToolConfig(**settings), run)
    box._kept["counted"] = OrderedDict()
    return box


async def test_answers_are_kept_as_long_as_there_is_room(context: Context):
    box = counted(context.config, cache_size=2)
    outputs = [(await box.call(context, "counted", query)).output for query in ("a", "b", "a", "c", "b")]
    assert outputs == ["a 1", "b 2", "a 1", "c 3", "b 4"]
    assert context.trace.counts["tool_counted_calls"] == 5 and context.trace.counts["tool_counted_cache_hits"] == 1


async def test_a_cache_of_0_keeps_nothing(context: Context):
    box = counted(context.config, cache_size=0)
    assert [(await box.call(context, "counted", "a")).output for _ in range(2)] == ["a 1", "a 2"]


async def test_each_tool_has_its_own_time_limit(context: Context):
    box = counted(context.config, timeout_seconds=0.1, options={"mode": "hang"})
    result = await box.call(context, "counted", "a")
    assert result.outcome is ToolOutcome.TIMED_OUT and "0.1" in result.error
    assert context.trace.counts["tool_counted_timeouts"] == 1 and context.trace.counts["tool_retries"] == 1
    assert context.config.rollout.tool_timeout_seconds == 30.0


async def test_a_tool_that_fails_is_tried_again_and_then_told_to_the_agent(context: Context):
    assert (await counted(context.config, options={"mode": "once"}).call(context, "counted", "a")).output == "a 2"
    result = await counted(context.config, options={"mode": "raise"}).call(context, "counted", "a")
    assert result.outcome is ToolOutcome.RAISED and "down" in result.error
    assert context.trace.counts["tool_counted_failures"] == 1


async def test_a_lost_sandbox_is_not_the_agents_business(context: Context):
    with pytest.raises(SandboxError, match="no room"):
        await counted(context.config, options={"mode": "crash"}).call(context, "counted", "a")


def keys(problems: list[Problem]) -> list[str]:
    """The keys of the problems."""
    return [problem.key for problem in problems]


def test_what_a_tool_lacks_is_refused_before_the_start(run_config: RunConfig, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("GOOGLE_API_KEY", raising=False)
    tools = {
        "base_generator": ToolConfig(),
        "python_coder": ToolConfig(model="nobody"),
        "wikipedia_search": ToolConfig(),
        "web_search": ToolConfig(endpoint="localhost:8300", topk=0),
        "google_search": ToolConfig(),
        "poetry": ToolConfig(),
    }
    problems = tool_problems(method_with(run_config, tools))
    assert keys(problems) == [
        "method.tools.base_generator.model",
        "method.tools.python_coder.model",
        "method.tools.wikipedia_search.endpoint",
        "method.tools.web_search.endpoint",
        "method.tools.web_search.topk",
        "method.tools.google_search.key_variable",
        "method.tools.poetry",
    ]
    assert "actor, base" in problems[0].remedy and "python -m vime.retrieval" in problems[2].remedy


def test_tools_that_have_what_they_need_are_fine(run_config: RunConfig, monkeypatch: pytest.MonkeyPatch, own_file: str):
    monkeypatch.setenv("MY_KEY", "k")
    tools = {
        "base_generator": ToolConfig(model="base"),
        "python_coder": ToolConfig(),
        "web_search": ToolConfig(endpoint="http://127.0.0.1:8300"),
        "google_search": ToolConfig(key_variable="MY_KEY"),
        "mine": ToolConfig(path=own_file),
    }
    assert tool_problems(method_with(run_config, tools)) == []


@pytest.mark.parametrize("path", ["nowhere.Tool", "vime.config.RunConfig", "no_dots", "/no/file.py:Tool", "vime.hooks.load_hook"])
def test_a_path_that_is_no_tool_is_refused(path: str, run_config: RunConfig):
    settings = ToolConfig(path=path)
    assert keys(tool_problems(method_with(run_config, {"mine": settings}))) == ["method.tools.mine.path"]
    with pytest.raises(ConfigError, match=r"method\.tools\.mine\.path"):
        PlannerTools({"mine": settings}, run_config)


def test_a_missing_sandbox_is_refused_where_programs_will_run(run_config: RunConfig, monkeypatch: pytest.MonkeyPatch):
    from agentic.agentflow.tools import python_coder

    monkeypatch.setattr(python_coder, "sandbox_problem", lambda: "bubblewrap is missing: install it")
    run = method_with(run_config, {"python_coder": ToolConfig()})
    assert "bubblewrap" in tool_problems(run)[0].remedy
    run.mode = Mode.plan
    assert tool_problems(run) == []
    run.mode, run.sandbox.allow_unsandboxed = Mode.train, True
    assert tool_problems(run) == []
