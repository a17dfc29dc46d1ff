"""An agent of pydantic-ai with a typed output: prints name, age and town of the person in the row's question."""

import json
import os
import sys

from pydantic import BaseModel
from pydantic_ai import Agent, ModelRequest, ModelResponse, ToolCallPart, ToolReturnPart, UserPromptPart  # pyright: ignore


class Person(BaseModel):
    """Somebody in a sentence."""

    name: str
    age: int
    town: str


EXAMPLES = (
    ("Eva is 51 years old and lives in Bonn.", Person(name="Eva", age=51, town="Bonn")),
    ("At 33, Paul moved to Turin.", Person(name="Paul", age=33, town="Turin")),
)
TOOL = "final_result"
"""As pydantic-ai calls the tool of a typed output."""


def main() -> None:
    """Prints `Mira, 34, Halin`; fails if the model's answer is no person."""
    with open(os.environ["VIME_SAMPLE"], encoding="utf-8") as file:
        question = json.load(file)["question"]
    history = []
    for number, (text, person) in enumerate(EXAMPLES):
        call = ToolCallPart(TOOL, person.model_dump(), tool_call_id=str(number))
        end = ToolReturnPart(TOOL, "Final result processed.", tool_call_id=str(number))
        history += [ModelRequest(parts=[UserPromptPart(text)]), ModelResponse(parts=[call]), ModelRequest(parts=[end])]
    agent = Agent(
        "openai-chat:policy", output_type=Person, instructions="Who is it?", retries=0, model_settings={"max_tokens": 64}
    )
    person = agent.run_sync(question, message_history=history).output
    sys.stdout.write(f"{person.name}, {person.age}, {person.town}")


main()
