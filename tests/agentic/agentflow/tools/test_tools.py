"""Each built-in tool: the model it asks, the real sandbox, and a service over HTTP."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from agentic.agentflow.tools.base_generator import BaseGenerator
from agentic.agentflow.tools.config import ToolConfig
from agentic.agentflow.tools.google_search import GoogleSearch
from agentic.agentflow.tools.python_coder import PythonCoder, is_program
from agentic.agentflow.tools.search import WebSearch, WikipediaSearch
from agentic.agentflow.tools.toolbox import PlannerTools
from tests.completing import context_with
from vime.agent.sandbox import sandbox_problem
from vime.config import RunConfig, SandboxConfig
from vime.errors import ServerError
from vime.rollout.context import Context
from vime.rollout.tool import ToolOutcome
from vime.types import Turn

CONFIG = RunConfig(sandbox=SandboxConfig(wall_seconds=20, cpu_seconds=1, packages=[]))
needs_sandbox = pytest.mark.skipif(sandbox_problem() is not None, reason=str(sandbox_problem()))


class Scripted:
    """A model that says one thing."""

    def __init__(self, text: str) -> None:
        self.text, self.asked = text, []

    async def chat(self, messages: list[dict[str, Any]], *, max_tokens: int) -> Turn:
        self.asked.append((messages[-1]["content"], max_tokens))
        return Turn(message={"role": "assistant", "content": self.text}, usage=(1, 1))


def context_of(**models: Any) -> Context:
    """A rollout with these models."""
    return context_with(models, config=CONFIG)


async def test_the_generator_asks_its_model():
    model = Scripted(" Paris \n")
    answer = await BaseGenerator(ToolConfig(model="base", max_tokens=7), CONFIG).execute(context_of(base=model), "Capital?")
    assert answer == "Paris" and model.asked == [("Capital?", 7)]


@needs_sandbox
@pytest.mark.parametrize(
    ("program", "answer"),
    [
        ("print(6 * 7)", "42"),
        ("x = 1", "(the program printed nothing)"),
        ("print('part')\n1 / 0", "part\n[raised, exit code 1]"),
        ("while True: pass", "[time_limit"),  # by the clock, or by the limit of its CPU time
        ("not a program", "[raised, exit code 1]"),
        ("import sys; sys.exit(2)", "[finished, exit code 2]"),
    ],
)
async def test_without_a_coder_the_query_is_the_program(program: str, answer: str):
    context = context_of()
    output = await PythonCoder(ToolConfig(), CONFIG).execute(context, program)
    assert output.startswith(answer)
    assert context.trace.counts["sandbox_calls"] == 1 and sum(context.trace.counts.values()) == 2


@needs_sandbox
async def test_a_coder_writes_the_program_unless_the_query_is_one():
    model = Scripted("Here it is:\n```python\nprint(sum(range(5)))\n```\nDone.")
    tool, context = PythonCoder(ToolConfig(model="coder"), CONFIG), context_of(coder=model)
    assert await tool.execute(context, "Sum the numbers below 5") == "10"
    assert await tool.execute(context, "print(3)") == "3"
    assert len(model.asked) == 1 and "Sum the numbers below 5" in model.asked[0][0]
    assert PythonCoder(ToolConfig(), CONFIG).deterministic and not tool.deterministic


@needs_sandbox
async def test_a_coder_without_a_program_and_a_program_without_end_are_refused():
    with pytest.raises(ValueError, match="no Python program"):
        await PythonCoder(ToolConfig(model="coder"), CONFIG).execute(context_of(coder=Scripted("I cannot.")), "Sum")
    with pytest.raises(ValueError, match="too long"):
        await PythonCoder(ToolConfig(), CONFIG).execute(context_of(), "x" * 100_000)


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("print(1)", True),
        ("x = 1", True),
        ("import math", True),
        ("Compute", False),
        ("sum of x", False),
        ("'a'", False),
        ("(" * 999, False),
    ],
)
def test_words_are_no_program(text: str, program: bool):
    assert is_program(text) is program


class Service:
    """A retrieval service and Google's, on this machine."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.connections: set[Any] = set()
        self.answer: Any = None
        self.status = 200
        self.address = ""

    async def handle(self, request: web.Request) -> web.Response:
        self.connections.add(request.transport)
        self.requests.append((request.path, await request.json(), request.headers.get("x-goog-api-key")))
        return web.json_response(self.answer, status=self.status)


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    """A running one."""
    service = Service()
    application = web.Application()
    application.router.add_post("/{path:.*}", service.handle)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    service.address = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield service
    await runner.cleanup()


@pytest.mark.parametrize("kind", [WikipediaSearch, WebSearch])
async def test_a_search_asks_the_service_and_lists_documents(kind: type[WebSearch], service: Service):
    documents = [{"id": "1", "title": "Paris", "text": "Capital of France."}, {"id": "2", "title": "", "text": "x" * 5000}]
    service.answer = {"result": [[{"document": document, "score": 1.0} for document in documents]]}
    tool = kind(ToolConfig(endpoint=service.address + "/", topk=2), CONFIG)
    output = await tool.execute(context_of(), "capital of France")
    assert output.startswith("[1] Paris\nCapital of France.\n\n[2] xxx") and len(output) < 2000
    assert service.requests == [("/retrieve", {"queries": ["capital of France"], "topk": 2}, None)]
    service.answer = {"result": [[]]}
    assert await tool.execute(context_of(), "nothing") == "(nothing found)"


async def test_what_is_no_answer_of_a_search_is_an_error(service: Service):
    tool = WebSearch(ToolConfig(endpoint=service.address), CONFIG)
    with pytest.raises(ValueError, match="empty"):
        await tool.execute(context_of(), "  ")
    service.answer = {"documents": []}
    with pytest.raises(ServerError, match="no documents"):
        await tool.execute(context_of(), "x")
    service.answer, service.status = {"error": "too long"}, 422
    with pytest.raises(ValueError, match="too long"):
        await tool.execute(context_of(), "x")
    await tool.service.close()


@pytest.mark.parametrize(("status", "num_requests"), [(503, 2), (429, 2), (401, 1)])
async def test_a_search_service_that_is_down_or_refuses_the_key_is_not_the_agents_fault(
    status: int, num_requests: int, service: Service
):
    box = PlannerTools({"web_search": ToolConfig(endpoint=service.address, timeout_seconds=0.3)}, CONFIG)
    context = context_of()
    service.answer, service.status = {"error": "full"}, status
    with pytest.raises(ServerError, match=f"answered {status}"):
        await box.call(context, "web_search", "x")
    assert context.trace.counts["tool_web_search_outages"] == 1 and "tool_web_search_failures" not in context.trace.counts
    assert len(service.requests) >= num_requests


async def test_a_search_service_that_is_gone_is_not_the_agents_fault():
    box = PlannerTools({"web_search": ToolConfig(endpoint="http://127.0.0.1:9", timeout_seconds=0.3)}, CONFIG)
    with pytest.raises(ServerError, match="gave no answer"):
        await box.call(context_of(), "web_search", "x")


async def test_searches_share_their_connections_and_outlast_a_failure_that_passes(service: Service):
    document = {"id": "1", "title": "Paris", "text": "Capital of France."}
    service.answer, service.status = {"result": [[{"document": document}]]}, 503
    box = PlannerTools({"web_search": ToolConfig(endpoint=service.address, timeout_seconds=30.0)}, CONFIG)
    first = asyncio.create_task(box.call(context_of(), "web_search", "x"))
    while not service.requests:
        await asyncio.sleep(0.01)
    service.status = 200
    assert str((await first).output).startswith("[1] Paris")
    assert (await box.call(context_of(), "web_search", "y")).outcome is ToolOutcome.ANSWERED
    assert len(service.requests) >= 3 and len(service.connections) == 1


async def test_google_is_asked_with_the_key_of_the_environment(service: Service, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MY_KEY", "k3y")
    service.answer = {"candidates": [{"content": {"parts": [{"text": "Paris"}, {"text": "."}]}}]}
    tool = GoogleSearch(ToolConfig(endpoint=service.address, key_variable="MY_KEY"), CONFIG)
    assert await tool.execute(context_of(), "Capital of France?") == "Paris."
    path, body, key = service.requests[0]
    assert path.endswith(":generateContent") and body["tools"] == [{"google_search": {}}] and key == "k3y"
    service.answer = {"candidates": []}
    with pytest.raises(RuntimeError, match="no text") as raised:
        await tool.execute(context_of(), "x")
    assert "k3y" not in str(raised.value)
