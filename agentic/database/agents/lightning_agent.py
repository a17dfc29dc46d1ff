"""An agent of Agent Lightning: a loop over OpenAI's SDK that calls a tool, and returns the reward of its answer."""

import json
from typing import Any

import agentlightning as agl  # pyright: ignore[reportMissingImports]
from openai import OpenAI

from agentic.database.agents.database import MOST_TOKENS, MOST_TURNS, SYSTEM, TOOL, query

PARAMETERS = {"type": "object", "properties": {"sql": {"type": "string"}}, "required": ["sql"]}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": TOOL, "description": "Asks the database.", "parameters": PARAMETERS}}
]


@agl.rollout
def lightning_agent(task: dict[str, Any], llm: agl.LLM) -> float:
    """1 if the answer to the question of a row is right."""
    return float(answer(task, llm).strip() == task["answer"])


def answer(task: dict[str, Any], llm: agl.LLM) -> str:
    """The answer of the model, which may ask the database first."""
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": task["question"]}]
    with OpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none", timeout=None) as client:
        for _ in range(MOST_TURNS):
            completion = client.chat.completions.create(
                model=llm.model, messages=messages, tools=TOOLS, max_tokens=MOST_TOKENS, **llm.sampling_parameters
            )
            message = completion.choices[0].message
            messages.append(message)
            if not message.tool_calls:
                return message.content or ""
            for call in message.tool_calls:
                messages.append({"role": "tool", "tool_call_id": call.id, "content": asked(task, call.function.arguments)})
    return ""


def asked(row: dict[str, Any], arguments: str) -> str:
    """The tool's answer to these arguments, which a model wrote."""
    try:
        return query(row, json.loads(arguments)["sql"])
    except (ValueError, KeyError, TypeError) as error:
        return f"error : {error}"
