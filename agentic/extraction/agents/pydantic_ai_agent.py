"""An agent of pydantic-ai with a typed output: name, age and town of the person in a sentence."""

from pydantic import BaseModel
from pydantic_ai import Agent  # pyright: ignore[reportMissingImports]


class Person(BaseModel):
    name: str
    age: int
    town: str


INSTRUCTIONS = """\
Who is it? Answer with a call, as here.

Eva is 51 years old and lives in Bonn.
<tool_call>
{"name": "final_result", "arguments": {"name": "Eva", "age": 51, "town": "Bonn"}}
</tool_call>

At 33, Paul moved to Turin.
<tool_call>
{"name": "final_result", "arguments": {"name": "Paul", "age": 33, "town": "Turin"}}
</tool_call>"""


def answer(question: str) -> str:
    """`Mira, 34, Halin`. Raises an error of pydantic-ai if the model's answer is no person."""
    agent = Agent(
        "openai-chat:policy", output_type=Person, instructions=INSTRUCTIONS, retries=0, model_settings={"max_tokens": 64}
    )
    person = agent.run_sync(question).output
    return f"{person.name}, {person.age}, {person.town}"
