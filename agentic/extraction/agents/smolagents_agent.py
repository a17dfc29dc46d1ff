"""A ToolCallingAgent of smolagents: prints name, age and town of the person in the row's question.

Its prompts are short, since those of smolagents itself are longer than a small model can use.
"""

import json
import os
import sys

from smolagents import EMPTY_PROMPT_TEMPLATES, OpenAIModel, ToolCallingAgent  # pyright: ignore

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


def main() -> None:
    """Prints `Mira, 34, Halin`; fails if the model does not answer by a call."""
    with open(os.environ["VIME_SAMPLE"], encoding="utf-8") as file:
        question = json.load(file)["question"]
    templates = {**EMPTY_PROMPT_TEMPLATES, "system_prompt": SYSTEM}
    model = OpenAIModel("policy", max_tokens=64)
    agent = ToolCallingAgent(tools=[], model=model, prompt_templates=templates, return_full_result=True, verbosity_level=-1)
    result = agent.run(question, max_steps=1)
    if result.state != "success":
        sys.exit("the model called no tool")
    sys.stdout.write(str(result.output))


main()
