"""Anthropic's tool runner, which sends new messages only, if the server takes that: `anthropic_runner.py run|stream`."""

import sys
from typing import Any

import task
from anthropic import Anthropic, beta_tool

kind = sys.argv[1]
client = Anthropic()
messages: list[Any] = []
answers: list[str] = []
for question in task.QUESTIONS:
    messages.append({"role": "user", "content": question})
    runner: Any = client.beta.messages.tool_runner(
        model="policy",
        max_tokens=2000,
        system=task.SYSTEM,
        messages=messages,
        tools=[beta_tool(task.owner_of), beta_tool(task.price_of)],
        stream=kind == "stream",
    )
    message: Any = None
    for turn in runner:
        message = turn.get_final_message() if kind == "stream" else turn
    messages = list(runner._params["messages"])
    if messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": message.content})
    answers.append(message.content[-1].text)
task.finish(answers)
