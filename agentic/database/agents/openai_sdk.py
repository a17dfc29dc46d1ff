"""An agent of OpenAI's SDK: a loop over Chat Completions that runs the tool until the model answers in words."""

import json
from typing import Any

from agentic.database.agents.database import MOST_TOKENS, MOST_TURNS, SYSTEM, TOOL, query

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": TOOL,
            "description": "Asks the database.",
            "parameters": {"type": "object", "properties": {"sql": {"type": "string"}}, "required": ["sql"]},
        },
    }
]


async def solve(openai_client: Any, sample: Any) -> str:
    """The answer to a question; `sample.metadata` has the tables of its database."""
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": sample.question}]
    for _ in range(MOST_TURNS):
        completion = await openai_client.chat.completions.create(
            model="policy", messages=messages, tools=TOOLS, max_tokens=MOST_TOKENS
        )
        message = completion.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return message.content or ""
        for call in message.tool_calls:
            messages.append({"role": "tool", "tool_call_id": call.id, "content": asked(sample.metadata, call.function.arguments)})
    return ""


def asked(row: dict[str, Any], arguments: str) -> str:
    """The tool's answer to these arguments, which a model wrote."""
    try:
        return query(row, json.loads(arguments)["sql"])
    except (ValueError, KeyError, TypeError) as error:
        return f"error : {error}"
