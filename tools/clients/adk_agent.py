"""An agent of Google's ADK, with its model class for litellm: `adk_agent.py run|stream`."""

import asyncio
import os
import sys

import task
from google.adk.agents import Agent, RunConfig  # pyright: ignore[reportMissingImports]
from google.adk.agents.run_config import StreamingMode  # pyright: ignore[reportMissingImports]
from google.adk.models.lite_llm import LiteLlm  # pyright: ignore[reportMissingImports]
from google.adk.runners import InMemoryRunner  # pyright: ignore[reportMissingImports]
from google.genai import types  # pyright: ignore[reportMissingImports]

model = LiteLlm(model="openai/policy", api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
agent = Agent(name="registrar", model=model, instruction=task.SYSTEM, tools=[task.owner_of, task.price_of])
mode = StreamingMode.SSE if sys.argv[1] == "stream" else StreamingMode.NONE


async def main() -> list[str]:
    """The answers."""
    runner = InMemoryRunner(agent=agent, app_name="registry")
    session = await runner.session_service.create_session(app_name="registry", user_id="someone")
    answers: list[str] = []
    for question in task.QUESTIONS:
        message = types.Content(role="user", parts=[types.Part(text=question)])
        events = runner.run_async(
            user_id="someone", session_id=session.id, new_message=message, run_config=RunConfig(streaming_mode=mode)
        )
        answer = ""
        async for event in events:
            if event.is_final_response() and event.content:
                answer = "".join(part.text or "" for part in event.content.parts or [] if not part.thought)
        answers.append(answer)
    return answers


task.finish(asyncio.run(main()))
