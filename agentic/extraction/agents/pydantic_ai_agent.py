"""An agent of pydantic-ai with a typed output: name, age and town of the person in a sentence."""

from pydantic import BaseModel
from pydantic_ai import Agent, ModelRequest, ModelResponse, TextPart, UserPromptPart  # pyright: ignore[reportMissingImports]


class Person(BaseModel):
    name: str
    age: int
    town: str


EXAMPLES = {
    "Eva is 51 years old and lives in Bonn.": '{"name": "Eva", "age": 51, "town": "Bonn"}',
    "At 33, Paul moved to Turin.": '{"name": "Paul", "age": 33, "town": "Turin"}',
}
CALL = '<tool_call>\n{"name": "final_result", "arguments": %s}\n</tool_call>'
"""A call of the tool of a typed output, as the model writes it."""


def answer(question: str) -> str:
    """`Mira, 34, Halin`. Raises an error of pydantic-ai if the model's answer is not a person."""
    history = []
    for text, person in EXAMPLES.items():
        history += [ModelRequest(parts=[UserPromptPart(text)]), ModelResponse(parts=[TextPart(CALL % person)])]
    agent = Agent("openai-chat:policy", output_type=Person, retries=0, model_settings={"max_tokens": 64})
    person = agent.run_sync(question, message_history=history).output
    return f"{person.name}, {person.age}, {person.town}"
