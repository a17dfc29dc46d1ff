"""OpenAI's SDK over Responses: `openai_responses.py sync|async|stream`. The stream goes on by the id of the answer before."""

import asyncio
import sys
from typing import Any

from openai import AsyncOpenAI, OpenAI
from task import DESCRIPTIONS, PARAMETERS, QUESTIONS, SYSTEM, finish, use

TOOLS: Any = [
    {"type": "function", "name": name, "description": text, "parameters": PARAMETERS, "strict": True}
    for name, text in DESCRIPTIONS.items()
]


async def ask(kind: str, items: list[Any], previous: str | None) -> Any:
    """One response to items; in a stream, to those that came since the previous response."""
    options: Any = {"model": "policy", "input": items, "instructions": SYSTEM, "tools": TOOLS, "max_output_tokens": 2000}
    if kind == "sync":
        with OpenAI() as client:
            return client.responses.create(**options, store=False)
    async with AsyncOpenAI() as client:
        if kind == "async":
            return await client.responses.create(**options, store=False)
        more: Any = {"previous_response_id": previous} if previous else {}
        async with client.responses.stream(**options, **more) as events:
            async for _ in events:
                pass
            return await events.get_final_response()


async def main(kind: str) -> list[str]:
    """The answers."""
    items: list[Any] = []
    answers: list[str] = []
    previous = None
    for question in QUESTIONS:
        new: list[Any] = [{"role": "user", "content": question}]
        while new:
            items += new
            response = await ask(kind, new if kind == "stream" else items, previous)
            previous = response.id
            items += [item.to_dict() for item in response.output]
            calls = [item for item in response.output if item.type == "function_call"]
            new = [
                {"type": "function_call_output", "call_id": call.call_id, "output": use(call.name, call.arguments)}
                for call in calls
            ]
        answers.append(response.output_text)
    return answers


finish(asyncio.run(main(sys.argv[1])))
