"""Anthropic's SDK: `anthropic_messages.py sync|stream`, with thinking, which is sent back as it came."""

import asyncio
import sys
from typing import Any

from anthropic import Anthropic, AsyncAnthropic
from task import DESCRIPTIONS, PARAMETERS, QUESTIONS, SYSTEM, finish, use

TOOLS: Any = [{"name": name, "description": text, "input_schema": PARAMETERS} for name, text in DESCRIPTIONS.items()]


async def ask(kind: str, messages: list[Any]) -> Any:
    """One message of the assistant."""
    options: Any = {"model": "policy", "max_tokens": 2000, "system": SYSTEM, "messages": messages, "tools": TOOLS}
    options["thinking"] = {"type": "enabled", "budget_tokens": 1024}
    if kind == "sync":
        with Anthropic() as client:
            return client.messages.create(**options)
    async with AsyncAnthropic() as client:
        counted = await client.messages.count_tokens(**{key: value for key, value in options.items() if key != "max_tokens"})
        async with client.messages.stream(**options) as events:
            async for _ in events:
                pass
            message = await events.get_final_message()
        usage = message.usage
        assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0), (counted, usage)
        return message


async def main(kind: str) -> list[str]:
    """The answers."""
    messages: list[Any] = []
    answers: list[str] = []
    for question in QUESTIONS:
        new: list[Any] = [{"type": "text", "text": question}]
        while new:
            messages.append({"role": "user", "content": new})
            message = await ask(kind, messages)
            assert message.content[0].type == "thinking", message.content
            messages.append({"role": "assistant", "content": message.content})
            calls = [block for block in message.content if block.type == "tool_use"]
            results = [{"type": "tool_result", "tool_use_id": call.id, "content": use(call.name, call.input)} for call in calls]
            new = results[::-1]
        answers.append(message.content[-1].text)
    return answers


finish(asyncio.run(main(sys.argv[1])))
