"""The planner: the trained role. It analyses the question once and then chooses sub-goal and tool, step by step."""

import re
from dataclasses import dataclass

from agentic.agentflow.memory import Memory
from agentic.agentflow.prompts import memory_text
from agentic.agentflow.roles import Roles
from vime.thinking import after_thinking
from vime.types import Turn

CONTEXT, SUB_GOAL, TOOL_NAME = "Context:", "Sub-Goal:", "Tool Name:"
ASSISTANT = "<|im_start|>assistant"
END_OF_TURN = "<|im_end|>"
_END_OF_NAME = re.compile(r"```|\n[ \t]*\n")


@dataclass(frozen=True, kw_only=True, slots=True)
class NextStep:
    """The planner's choice; NextStep(context="3 lamps", sub_goal="Compute 3 * 7", tool_name="Python_Coder").

    All three are empty if the reply lacks one of the three sections.
    """

    context: str = ""
    sub_goal: str = ""
    tool_name: str = ""

    @property
    def parsed(self) -> bool:
        """True if the reply had all three sections, with any content."""
        return self != NextStep()


async def plan(roles: Roles, question: str) -> Turn:
    """Asks for the analysis of the question, before the first step."""
    content = roles.prompts.plan.format(question=question, tools=roles.tool_names, toolbox=roles.toolbox_text)
    return await roles.analyse(content)


async def next_step(roles: Roles, question: str, *, analysis: str, memory: Memory) -> Turn:
    """Asks for the next step; `parse_next_step` reads the reply."""
    content = roles.prompts.next_step.format(
        question=question,
        analysis=analysis,
        tools=roles.tool_names,
        toolbox=roles.toolbox_text,
        memory=memory_text(roles.style, memory),
    )
    return await roles.plan(content)


def parse_next_step(reply: str, *, thinks: bool = False) -> NextStep:
    """Reads the last complete sequence of Context, Sub-Goal and Tool Name in a reply.

    Earlier turns, thinking (`vime.thinking`) and bold marks are ignored. The name ends at an empty line or a code fence.
    """
    text = reply.rsplit(ASSISTANT, 1)[-1]
    text = after_thinking(text, thinks=thinks).replace("**", "")
    at_name = text.rfind(TOOL_NAME)
    at_goal = text.rfind(SUB_GOAL, 0, max(at_name, 0))
    at_context = text.rfind(CONTEXT, 0, max(at_goal, 0))
    if min(at_name, at_goal, at_context) < 0:
        return NextStep()
    name = _END_OF_NAME.split(text[at_name + len(TOOL_NAME) :].lstrip(), maxsplit=1)[0]
    return NextStep(
        context=_clean(text[at_context + len(CONTEXT) : at_goal]),
        sub_goal=_clean(text[at_goal + len(SUB_GOAL) : at_name]),
        tool_name=_clean(name),
    )


def _clean(section: str) -> str:
    return section.replace(END_OF_TURN, "").strip()
