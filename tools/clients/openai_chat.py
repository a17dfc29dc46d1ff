"""OpenAI's SDK over Chat Completions: `openai_chat.py sync|async|stream`. Results of parallel calls come in any order."""

import asyncio
import sys
from typing import Any

from openai import AsyncOpenAI, OpenAI
from task import DESCRIPTIONS, PARAMETERS, QUESTIONS, SYSTEM, finish, use

TOOLS: Any = [
    {"type": "function", "function": {"name": name, "description": text, "parameters": PARAMETERS, "strict": True}}
    for name, text in DESCRIPTIONS.items()
]


async def ask(kind: str, messages: list[Any]) -> Any:
    """One message of the assistant."""
    options: Any = {"model": "policy", "messages": messages, "tools": TOOLS, "max_completion_tokens": 2000}
    if kind == "sync":
        with OpenAI() as client:
            return client.chat.completions.create(**options).choices[0].message
    async with AsyncOpenAI() as client:
        if kind == "async":
            return (await client.chat.completions.create(**options)).choices[0].message
        async with client.chat.completions.stream(**options, stream_options={"include_usage": True}) as events:
            async for _ in events:
                pass
            completion = await events.get_final_completion()
            assert completion.usage is not None and completion.usage.completion_tokens > 0
            return completion.choices[0].message


async def main(kind: str) -> list[str]:
    """The answers."""
    messages: list[Any] = [{"role": "system", "content": SYSTEM}]
    answers: list[str] = []
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        message = await ask(kind, messages)
        while message.tool_calls:
            results = [
                {"role": "tool", "tool_call_id": call.id, "content": use(call.function.name, call.function.arguments)}
                for call in message.tool_calls
            ]
            messages += [message.to_dict(), *reversed(results)]
            message = await ask(kind, messages)
        messages.append(message.to_dict())
        answers.append(message.content)
    return answers


finish(asyncio.run(main(sys.argv[1])))
