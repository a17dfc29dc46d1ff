"""The evolving memory (arXiv 2510.05592, section 3): a record of the steps, which every role but the executor reads."""

from dataclasses import dataclass, field
from typing import Any

MAX_RESULT_CHARACTERS = 4096
CUT_MARK = "\n… cut …\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One action; Step(number=1, tool_name="python_coder", sub_goal="Compute 2 + 2", command="execution = …", result="4")."""

    number: int
    tool_name: str
    sub_goal: str
    command: str
    result: str


@dataclass(kw_only=True, slots=True)
class Memory:
    """The steps of one rollout."""

    steps: list[Step] = field(default_factory=list)

    def add(self, *, tool_name: str, sub_goal: str, command: str, result: str) -> Step:
        """Adds a step; only the beginning and the end of a long result are kept."""
        step = Step(number=len(self.steps) + 1, tool_name=tool_name, sub_goal=sub_goal, command=command, result=shortened(result))
        self.steps.append(step)
        return step

    def actions(self) -> dict[str, dict[str, Any]]:
        """The steps by name: {"Action Step 1": {"tool_name": …, "sub_goal": …, "command": …, "result": …}}."""
        return {
            f"Action Step {step.number}": {
                "tool_name": step.tool_name,
                "sub_goal": step.sub_goal,
                "command": step.command,
                "result": step.result,
            }
            for step in self.steps
        }


def shortened(result: str) -> str:
    """The result, with its middle replaced by a mark if it is longer than `MAX_RESULT_CHARACTERS`."""
    if len(result) <= MAX_RESULT_CHARACTERS:
        return result
    half = MAX_RESULT_CHARACTERS // 2
    return result[:half] + CUT_MARK + result[-half:]
