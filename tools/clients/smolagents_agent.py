"""Agents of smolagents: `smolagents_agent.py tools|code|structured`."""

import sys

import task
from smolagents import CodeAgent, OpenAIModel, ToolCallingAgent, tool  # pyright: ignore[reportMissingImports]


@tool
def owner_of(thing: str) -> str:
    """The owner of a thing.

    Args:
        thing: The thing.
    """
    return task.owner_of(thing)


@tool
def price_of(thing: str) -> str:
    """The price of a thing.

    Args:
        thing: The thing.
    """
    return task.price_of(thing)


kind = sys.argv[1]
model, tools = OpenAIModel("policy"), [owner_of, price_of]
if kind == "tools":
    agent = ToolCallingAgent(model=model, tools=tools, verbosity_level=0, max_tool_threads=1)
else:
    agent = CodeAgent(model=model, tools=tools, verbosity_level=0, use_structured_outputs_internally=kind == "structured")
task.finish([str(agent.run(question, reset=False, max_steps=6)) for question in task.QUESTIONS])
