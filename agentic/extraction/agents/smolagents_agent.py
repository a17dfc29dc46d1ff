"""A ToolCallingAgent of smolagents: name, age and town of the person in a sentence.

Its prompts are short: those of smolagents itself are longer than so small a model can use.
"""

from smolagents import EMPTY_PROMPT_TEMPLATES, OpenAIModel, ToolCallingAgent  # pyright: ignore[reportMissingImports]

SYSTEM = """\
Who is it? Answer with a call, as here.

Eva is 51 years old and lives in Bonn.
<tool_call>
{"name": "final_answer", "arguments": {"answer": "Eva, 51, Bonn"}}
</tool_call>

At 33, Paul moved to Turin.
<tool_call>
{"name": "final_answer", "arguments": {"answer": "Paul, 33, Turin"}}
</tool_call>"""


def answer(question: str) -> str:
    """`Mira, 34, Halin`. Raises an error if the model does not answer by a call."""
    templates = {**EMPTY_PROMPT_TEMPLATES, "system_prompt": SYSTEM}
    model = OpenAIModel("policy", max_tokens=64)
    agent = ToolCallingAgent(tools=[], model=model, prompt_templates=templates, return_full_result=True, verbosity_level=-1)
    result = agent.run(question, max_steps=1)
    if result.state != "success":
        raise RuntimeError("the model called no tool")
    return str(result.output)
