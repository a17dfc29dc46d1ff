"""The agent: `agent.py` reads a problem from its input, and prints how it ended and how often it has used its tool as JSON.

It knows nothing of vime but the model provider and the limiter, and runs in an environment with Strands.
"""

import json
import os
import subprocess
import sys

from strands import Agent, tool  # pyright: ignore[reportMissingImports]
from strands.agent.conversation_manager import NullConversationManager  # pyright: ignore[reportMissingImports]
from strands.types.exceptions import (  # pyright: ignore[reportMissingImports]
    ContextWindowOverflowException,
    MaxTokensReachedException,
)

from agentic.integrations.strands import LoopLimiter, SessionModel

SYSTEM = (
    "You solve mathematical problems. Compute with the tool execute_python_code, which returns what your code prints, and not in "
    "your head; go step by step. End with the result in \\boxed{}."
)
OUTPUT_CHARACTERS = 10_000


@tool
def execute_python_code(code: str) -> str:
    """Runs a Python program and returns what it prints.

    Args:
        code: The program.
    """
    try:
        end = subprocess.run(
            [os.environ.get("TOOL_PYTHON", "python3"), "-c", code],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=float(os.environ.get("TOOL_SECONDS", "60")),
        )
    except subprocess.TimeoutExpired as error:
        return f"ended after {error.timeout:g} s"
    return (end.stdout + end.stderr)[-OUTPUT_CHARACTERS:] or "(no output)"


def main() -> None:
    """Solves one problem."""
    limiter = LoopLimiter(most_turns=int(os.environ.get("MOST_TURNS", "5")))
    agent = Agent(
        model=SessionModel(),
        tools=[execute_python_code],
        system_prompt=SYSTEM,
        hooks=[limiter],
        conversation_manager=NullConversationManager(),
        callback_handler=None,
    )
    ending = "answered"
    try:
        agent(sys.stdin.read())
    except (ContextWindowOverflowException, MaxTokensReachedException) as error:
        ending = type(error).__name__
    if limiter.is_reached:
        ending = "turn_limit"
    json.dump({"ending": ending, "turns": limiter.num_turns}, sys.stdout)


if __name__ == "__main__":
    main()
