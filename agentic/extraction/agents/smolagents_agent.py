"""A ToolCallingAgent of smolagents: name, age and town of the person in a sentence.

Its prompts are short: those of smolagents itself are longer than so small a model can use.
"""

from smolagents import EMPTY_PROMPT_TEMPLATES, ActionStep, OpenAIModel, TaskStep, ToolCallingAgent  # pyright: ignore
from smolagents.monitoring import Timing  # pyright: ignore[reportMissingImports]

EXAMPLE = "Eva is 51 years old and lives in Bonn.", "Eva, 51, Bonn"
CALL = '<tool_call>\n{"name": "final_answer", "arguments": {"answer": "%s"}}\n</tool_call>'
"""A call as the model writes it."""


def answer(question: str) -> str:
    """`Mira, 34, Halin`. Raises an error if the model does not answer by a call."""
    templates = {**EMPTY_PROMPT_TEMPLATES, "system_prompt": "Answer by a call."}
    model = OpenAIModel("policy", max_tokens=64)
    agent = ToolCallingAgent(tools=[], model=model, prompt_templates=templates, return_full_result=True, verbosity_level=-1)
    text, said = EXAMPLE
    example = ActionStep(step_number=1, timing=Timing(start_time=0.0), model_output=CALL % said)
    agent.memory.steps += [TaskStep(task=text), example]
    result = agent.run(question, reset=False, max_steps=1)
    if result.state != "success":
        raise RuntimeError("the model called no tool")
    return str(result.output)
