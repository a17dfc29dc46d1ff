"""An agent of Microsoft's Agent Framework: `agent_framework_agent.py chat|responses run|stream`."""

import asyncio
import sys

import task
from agent_framework.openai import OpenAIChatClient, OpenAIChatCompletionClient  # pyright: ignore[reportMissingImports]

protocol, kind = sys.argv[1:]
client = (OpenAIChatCompletionClient if protocol == "chat" else OpenAIChatClient)(model="policy")
agent = client.as_agent(name="registrar", instructions=task.SYSTEM, tools=[task.owner_of, task.price_of])


async def main() -> list[str]:
    """The answers."""
    session = agent.create_session()
    answers: list[str] = []
    for question in task.QUESTIONS:
        if kind == "run":
            result = await agent.run(question, session=session)
        else:
            stream = agent.run(question, session=session, stream=True)
            async for _ in stream:
                pass
            result = await stream.get_final_response()
        answers.append(result.text)
    return answers


task.finish(asyncio.run(main()))
