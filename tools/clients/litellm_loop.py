"""litellm's completion in a loop of its own: `litellm_loop.py openai|anthropic run|stream`."""

import sys
from typing import Any

import litellm  # pyright: ignore[reportMissingImports]
import task

provider, kind = sys.argv[1:]
TOOLS = [
    {"type": "function", "function": {"name": name, "description": text, "parameters": task.PARAMETERS}}
    for name, text in task.DESCRIPTIONS.items()
]


def ask(messages: list[Any]) -> Any:
    """One message of the assistant."""
    options: Any = {"model": f"{provider}/policy", "messages": messages, "tools": TOOLS, "max_tokens": 2000}
    if kind == "run":
        return litellm.completion(**options).choices[0].message
    chunks = list(litellm.completion(**options, stream=True))
    built: Any = litellm.stream_chunk_builder(chunks, messages=messages)
    return built.choices[0].message


messages: list[Any] = [{"role": "system", "content": task.SYSTEM}]
answers: list[str] = []
for question in task.QUESTIONS:
    messages.append({"role": "user", "content": question})
    message = ask(messages)
    while message.tool_calls:
        results = [
            {"role": "tool", "tool_call_id": call.id, "content": task.use(call.function.name, call.function.arguments)}
            for call in message.tool_calls
        ]
        messages += [message.model_dump(), *results]
        message = ask(messages)
    messages.append(message.model_dump())
    answers.append(message.content)
task.finish(answers)
