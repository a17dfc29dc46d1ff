"""AgentFlow's prompts for the tiny models: short and regular, so that a reply needs only looking up and copying.

Planner, verifier and generator see the question and the steps, the executor the sub-goal and the tool. The fields are those of
`prompts.py`, without the tools, which a tiny model has memorized, and the analysis, which it does not need.
"""

from collections.abc import Sequence

PLAN = "Plan:\nQuestion: {question}"
NEXT_STEP = "Next:\nQuestion: {question}\nSteps: {memory}"
EXECUTOR = "Command:\nSub-Goal: {sub_goal}\nTool: {tool_name}"
VERIFIER = "Verify:\nQuestion: {question}\nSteps: {memory}"
FINAL = "Answer:\nQuestion: {question}\nSteps: {memory}"
SINGLE_TURN = "Single:\nQuestion: {question}"
CODER = "Program:\nQuery: {query}"
NO_STEPS = "none"
LONG_RESULT = "error"
MAX_RESULT_CHARACTERS = 24
"""A longer result is a traceback; a tiny model only sees the word `error` in its place."""


def steps(taken: Sequence[tuple[str, str]]) -> str:
    """Tool and result of each step; `price_list says 7 ; python_coder says 21`, or `none`."""
    return " ; ".join(f"{tool_name} says {_short(result)}" for tool_name, result in taken) or NO_STEPS


def _short(result: str) -> str:
    words = " ".join(result.split())
    return words if len(words) <= MAX_RESULT_CHARACTERS else LONG_RESULT
