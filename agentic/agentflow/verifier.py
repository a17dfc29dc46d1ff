"""The verifier, which decides after each step whether the steps taken suffice to answer the question."""

import re
from dataclasses import dataclass

from agentic.agentflow.memory import Memory
from agentic.agentflow.prompts import memory_text
from agentic.agentflow.roles import Role, Roles
from vime.thinking import after_thinking

_CONCLUSION = re.compile(r"conclusion\s*:?[\s*`]*(stop|continue)\b", re.IGNORECASE)
_WORD = re.compile(r"\b(stop|continue)\b", re.IGNORECASE)
NUM_LAST_LINES = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Verdict(stop=True, parsed=True); `parsed` is False if the reply had no conclusion, and the loop then goes on."""

    stop: bool
    parsed: bool


async def verify(roles: Roles, question: str, *, analysis: str, memory: Memory) -> Verdict:
    """Asks the verifier about the steps so far."""
    content = roles.prompts.verifier.format(
        question=question,
        analysis=analysis,
        tools=roles.tool_names,
        toolbox=roles.toolbox_text,
        memory=memory_text(roles.style, memory),
    )
    return parse_verdict((await roles.ask(Role.verifier, content)).text)


def parse_verdict(reply: str) -> Verdict:
    """Reads the last `Conclusion: STOP` or `CONTINUE`, else the last such word of the last three lines; else it is CONTINUE.

    A thinking is ignored.
    """
    text = after_thinking(reply)
    found = _CONCLUSION.findall(text)
    if not found:
        lines = [line for line in text.splitlines() if line.strip()]
        found = _WORD.findall("\n".join(lines[-NUM_LAST_LINES:]))
    return Verdict(stop=bool(found) and found[-1].lower() == "stop", parsed=bool(found))
