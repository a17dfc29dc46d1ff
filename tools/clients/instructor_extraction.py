"""Typed answers by instructor: `instructor_extraction.py tools|json|json_schema|anthropic_tools`."""

import sys
from typing import Any

import instructor  # pyright: ignore[reportMissingImports]
import task
from anthropic import Anthropic
from openai import OpenAI
from typed_answer import Answer

mode = instructor.Mode[sys.argv[1].upper()]
is_anthropic = mode is instructor.Mode.ANTHROPIC_TOOLS
client: Any = instructor.from_anthropic(Anthropic(), mode=mode) if is_anthropic else instructor.from_openai(OpenAI(), mode=mode)
options: Any = {"max_tokens": 500} if is_anthropic else {}
answers: list[str] = []
for question, fact in zip(task.QUESTIONS, ("Ada has the mill for 40, Bea the barn.", "Ada has 40, Bea has 7."), strict=True):
    messages = [{"role": "user", "content": f"{fact}\n{question}"}]
    answer = client.chat.completions.create(model="policy", response_model=Answer, messages=messages, max_retries=1, **options)
    answers.append(answer.answer)
task.finish(answers)
