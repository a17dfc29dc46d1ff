"""OpenAI's tool runner over Responses: `openai_runner.py run|stream`."""

import sys
from typing import Any

import task
from openai import OpenAI
from openai.lib.responses_tool_runner import RegisteredFunction, ResponsesToolRunner

functions = [
    RegisteredFunction(
        tool={"type": "function", "name": name, "description": text, "parameters": task.PARAMETERS, "strict": True},
        execute=lambda arguments, name=name: task.use(name, arguments),
    )
    for name, text in task.DESCRIPTIONS.items()
]
client = OpenAI()
previous: dict[str, Any] = {}
answers: list[str] = []
for question in task.QUESTIONS:
    runner = ResponsesToolRunner(functions=functions)
    params: Any = {"model": "policy", "instructions": task.SYSTEM, "input": [{"role": "user", "content": question}], **previous}
    response = runner.run(client, params, stream=sys.argv[1] == "stream")
    previous = {"previous_response_id": response.id}
    answers.append(response.output_text)
task.finish(answers)
