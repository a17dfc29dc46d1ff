"""OpenAI's agents: `openai_agents.py chat|responses run|stream`. A first agent hands over to a second, which has tools."""

import asyncio
import sys

import task
from agents import (  # pyright: ignore[reportMissingImports]
    Agent,
    Runner,
    function_tool,
    set_default_openai_api,
    set_tracing_disabled,
)

set_tracing_disabled(True)
set_default_openai_api("chat_completions" if sys.argv[1] == "chat" else "responses")
registrar = Agent(
    name="registrar",
    model="policy",
    instructions=task.SYSTEM,
    handoff_description="Knows owners and prices.",
    tools=[function_tool(task.owner_of), function_tool(task.price_of)],
)
desk = Agent(name="desk", model="policy", instructions="You hand questions over.", handoffs=[registrar])


async def main(kind: str) -> list[str]:
    """The answers; the second question goes to the agent that answered the first."""
    answers: list[str] = []
    agent, items = desk, []
    for question in task.QUESTIONS:
        items = [*items, {"role": "user", "content": question}]
        if kind == "run":
            result = await Runner.run(agent, items)
        else:
            result = Runner.run_streamed(agent, items)
            async for _ in result.stream_events():
                pass
        agent, items = result.last_agent, result.to_input_list()
        answers.append(result.final_output)
    return answers


task.finish(asyncio.run(main(sys.argv[2])))
