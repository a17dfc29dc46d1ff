"""An agent of AutoGen: `autogen_agent.py run|stream`."""

import asyncio
import sys

import task
from autogen_agentchat.agents import AssistantAgent  # pyright: ignore[reportMissingImports]
from autogen_agentchat.base import TaskResult  # pyright: ignore[reportMissingImports]
from autogen_ext.models.openai import OpenAIChatCompletionClient  # pyright: ignore[reportMissingImports]

MODEL = {"vision": False, "function_calling": True, "json_output": False, "structured_output": False, "family": "unknown"}
streams = sys.argv[1] == "stream"
agent = AssistantAgent(
    "registrar",
    model_client=OpenAIChatCompletionClient(model="policy", model_info=MODEL),
    system_message=task.SYSTEM,
    tools=[task.owner_of, task.price_of],
    max_tool_iterations=6,
    model_client_stream=streams,
)


async def main() -> list[str]:
    """The answers."""
    answers: list[str] = []
    for question in task.QUESTIONS:
        result = None
        async for event in agent.run_stream(task=question):
            result = event if isinstance(event, TaskResult) else result
        assert result is not None
        answers.append(result.messages[-1].content)
    return answers


task.finish(asyncio.run(main()))
