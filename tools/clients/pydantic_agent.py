"""An agent of pydantic-ai: `pydantic_agent.py openai-chat|openai-responses|anthropic text|typed|stream`."""

import asyncio
import sys
from typing import Any

import task
from pydantic_ai import Agent  # pyright: ignore[reportMissingImports]
from typed_answer import Answer

provider, kind = sys.argv[1:]
agent: Any = Agent(
    f"{provider}:policy",
    instructions=task.SYSTEM,
    tools=[task.owner_of, task.price_of],
    output_type=Answer if kind == "typed" else str,
)


async def received(context: Any, events: Any) -> None:
    """Handler of events that does nothing; its presence makes replies be streamed."""
    async for _ in events:
        pass


async def main() -> list[str]:
    """The answers."""
    history: list[Any] = []
    answers: list[str] = []
    for question in task.QUESTIONS:
        handler = {"event_stream_handler": received} if kind == "stream" else {}
        result = await agent.run(question, message_history=history, **handler)
        history, output = result.all_messages(), result.output
        answers.append(output.answer if isinstance(output, Answer) else output)
    return answers


task.finish(asyncio.run(main()))
