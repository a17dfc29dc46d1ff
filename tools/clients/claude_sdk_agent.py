"""An agent of the Claude Agent SDK, whose tools are in this program."""

import asyncio
import os

import task
from claude_agent_sdk import (  # pyright: ignore[reportMissingImports]
    ClaudeAgentOptions,
    ClaudeSDKClient,
    ResultMessage,
    create_sdk_mcp_server,
    tool,
)


@tool("owner_of", "Who owns a thing.", {"thing": str})
async def owner_of(arguments: dict[str, str]) -> dict[str, object]:
    """The owner of a thing, in the form that the SDK wants for results."""
    return {"content": [{"type": "text", "text": task.owner_of(arguments["thing"])}]}


@tool("price_of", "What a thing cost.", {"thing": str})
async def price_of(arguments: dict[str, str]) -> dict[str, object]:
    """The price of a thing, in the form that the SDK wants for results."""
    return {"content": [{"type": "text", "text": task.price_of(arguments["thing"])}]}


async def main() -> list[str]:
    """The answers."""
    server = create_sdk_mcp_server("registry", tools=[owner_of, price_of])
    options = ClaudeAgentOptions(
        model="policy",
        system_prompt=task.SYSTEM,
        mcp_servers={"registry": server},
        allowed_tools=["mcp__registry__owner_of", "mcp__registry__price_of"],
        tools=[],
        setting_sources=[],
        env={"HOME": os.getcwd(), "CLAUDE_CONFIG_DIR": os.getcwd()},
    )
    answers: list[str] = []
    async with ClaudeSDKClient(options) as client:
        for question in task.QUESTIONS:
            await client.query(question)
            async for message in client.receive_response():
                if isinstance(message, ResultMessage):
                    answers.append(message.result or "")
    return answers


task.finish(asyncio.run(main()))
