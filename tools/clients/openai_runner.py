"""OpenAI's tool runner over Responses: `openai_runner.py run|stream`."""

import sys
from functools import partial
from typing import Any

import task
from openai import OpenAI
from openai.lib.responses_tool_runner import RegisteredFunction, ResponsesToolRunner

said: list[str] = []
"""Results of the tools: the runner does not tell them, and the next question needs them."""


def use(name: str, arguments: dict[str, Any]) -> str:
    """The result of a tool call."""
    said.append(task.use(name, arguments))
    return said[-1]


functions = [
    RegisteredFunction(
        tool={"type": "function", "name": name, "description": text, "parameters": task.PARAMETERS, "strict": True},
        execute=partial(use, name),
    )
    for name, text in task.DESCRIPTIONS.items()
]
client = OpenAI()
history: list[Any] = []
answers: list[str] = []
for question in task.QUESTIONS:
    history.append({"role": "user", "content": question})
    params: Any = {"model": "policy", "instructions": task.SYSTEM, "input": list(history)}
    turns = list(ResponsesToolRunner(functions=functions).iterate(client, params, stream=sys.argv[1] == "stream"))
    for turn in turns:
        calls = [item for item in turn.response.output if item.type == "function_call"]
        history += [item.to_dict(exclude_none=True) for item in turn.response.output]
        history += [{"type": "function_call_output", "call_id": call.call_id, "output": said.pop(0)} for call in calls]
    answers.append(turns[-1].response.output_text)
task.finish(answers)
