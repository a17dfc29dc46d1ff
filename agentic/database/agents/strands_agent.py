"""An agent of Strands with a tool, a model provider of its own and a bound on its turns."""

import json
import os
import sys

import database
from strands import Agent, tool  # pyright: ignore[reportMissingImports]
from strands.agent.conversation_manager import NullConversationManager  # pyright: ignore[reportMissingImports]
from strands.types.exceptions import ContextWindowOverflowException, MaxTokensReachedException  # pyright: ignore[reportMissingImports]

from agentic.integrations.strands import LoopLimiter, SessionModel


def main() -> None:
    """Prints the answer to the question of the row."""
    with open(os.environ["VIME_SAMPLE"], encoding="utf-8") as file:
        row = json.load(file)

    @tool
    def query(sql: str) -> str:
        """Asks the database."""
        return database.query(row, sql)

    limiter = LoopLimiter(most_turns=database.MOST_TURNS)
    agent = Agent(
        model=SessionModel(max_tokens=database.MOST_TOKENS),
        tools=[query],
        system_prompt=database.SYSTEM,
        hooks=[limiter],
        conversation_manager=NullConversationManager(),
        callback_handler=None,
    )
    try:
        result = agent(row["question"])
    except (ContextWindowOverflowException, MaxTokensReachedException):
        return
    if not limiter.is_reached:
        sys.stdout.write(str(result).strip())


if __name__ == "__main__":
    main()
