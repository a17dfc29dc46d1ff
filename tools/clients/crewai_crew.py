"""A crew of one agent of crewAI, asked twice."""

import os

os.environ |= {"CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true", "CREWAI_TRACING_ENABLED": "false"}

import task
from crewai import LLM, Agent, Crew, Task  # pyright: ignore[reportMissingImports]
from crewai.tools import tool  # pyright: ignore[reportMissingImports]


@tool
def owner_of(thing: str) -> str:
    """The owner of a thing."""
    return task.owner_of(thing)


@tool
def price_of(thing: str) -> str:
    """The price of a thing."""
    return task.price_of(thing)


model = LLM(model="openai/policy", base_url=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
agent = Agent(role="registrar", goal="Answer.", backstory=task.SYSTEM, llm=model, tools=[owner_of, price_of], verbose=False)
tasks = [Task(description=question, expected_output="One line.", agent=agent) for question in task.QUESTIONS]
outputs = Crew(agents=[agent], tasks=tasks, verbose=False).kickoff().tasks_output
task.finish([output.raw for output in outputs])
