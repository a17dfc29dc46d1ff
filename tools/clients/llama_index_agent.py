"""An agent of LlamaIndex: `llama_index_agent.py run|stream`."""

import asyncio
import os
import sys

import task
from llama_index.core.agent.workflow import FunctionAgent  # pyright: ignore[reportMissingImports]
from llama_index.core.memory import ChatMemoryBuffer  # pyright: ignore[reportMissingImports]
from llama_index.llms.openai_like import OpenAILike  # pyright: ignore[reportMissingImports]

model = OpenAILike(
    model="policy",
    api_base=os.environ["OPENAI_BASE_URL"],
    api_key=os.environ["OPENAI_API_KEY"],
    is_chat_model=True,
    is_function_calling_model=True,
    context_window=16_000,
)
agent = FunctionAgent(
    llm=model, system_prompt=task.SYSTEM, tools=[task.owner_of, task.price_of], streaming=sys.argv[1] == "stream"
)


async def main() -> list[str]:
    """The answers."""
    memory = ChatMemoryBuffer.from_defaults(token_limit=12_000, tokenizer_fn=str.split)
    return [str(await agent.run(question, memory=memory)) for question in task.QUESTIONS]


task.finish(asyncio.run(main()))
