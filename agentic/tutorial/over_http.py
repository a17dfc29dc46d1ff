"""Step 6, a client of your own: an agent that knows nothing of vime asks its model over HTTP, here by OpenAI's SDK.

    python -m vime.run +experiment=tutorial method.generate=agentic.tutorial.over_http.solve \
        method.reward=agentic.tutorial.over_http.reward trainer.num_steps=4
"""

import json
from typing import Any

from agentic.database.agents.database import query
from agentic.tutorial.one_call import SYSTEM

PARAMETERS = {"type": "object", "properties": {"sql": {"type": "string"}}, "required": ["sql"]}
TOOLS: list[Any] = [{"type": "function", "function": {"name": "query", "parameters": PARAMETERS}}]


async def solve(openai_client: Any, sample: Any) -> str:
    """A loop as any agent has it; its result is in the samples' metadata as `output`."""
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": sample.question}]
    for _ in range(6):
        answer = await openai_client.chat.completions.create(model="policy", messages=messages, tools=TOOLS, max_tokens=64)
        messages.append(message := answer.choices[0].message)
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            try:
                found = query(sample.metadata, json.loads(call.function.arguments)["sql"])
            except (ValueError, KeyError, TypeError) as error:
                found = f"error : {error}"
            messages.append({"role": "tool", "tool_call_id": call.id, "content": found})
    return message.content or ""


async def reward(context: Any, samples: list[Any]) -> float:
    """1 for the answer."""
    return float(str(samples[-1].metadata.get("output")).strip() == samples[-1].label[0])
