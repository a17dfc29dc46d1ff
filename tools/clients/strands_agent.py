"""An agent of Strands with vime's model provider, whose tools may be called side by side: `strands_agent.py`."""

import task
from strands import Agent, tool  # pyright: ignore[reportMissingImports]
from strands.agent.conversation_manager import NullConversationManager  # pyright: ignore[reportMissingImports]

from agentic.integrations.strands import LoopLimiter, SessionModel

agent = Agent(
    model=SessionModel(),
    tools=[tool(task.owner_of), tool(task.price_of)],
    system_prompt=task.SYSTEM,
    hooks=[LoopLimiter(most_turns=8)],
    conversation_manager=NullConversationManager(),
    callback_handler=None,
)
task.finish([str(agent(question)).strip() for question in task.QUESTIONS])
