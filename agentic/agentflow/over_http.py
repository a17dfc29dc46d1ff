"""AgentFlow with its planner behind OpenAI's client: the same loop as of an agent that knows nothing of tokens.

    python -m vime.run +method=agentflow method.generate=agentic.agentflow.over_http.generate

It learns as the native one does, since the session of the rollout keeps the planner's samples (`vime.gateway`).
"""

from dataclasses import dataclass, replace
from typing import Any

import openai

from agentic.agentflow import generate as native
from agentic.agentflow.config import AgentFlowConfig
from vime.chat.request import CONTEXT_FULL
from vime.rollout.context import Context, Sampling
from vime.types import Message, Sample, Turn


@dataclass(kw_only=True, slots=True)
class ClientModel:
    """A model behind OpenAI's client; its turns have texts and no tokens."""

    client: openai.AsyncOpenAI
    name: str
    max_model_len: int

    @property
    def shows_tokens(self) -> bool:
        """False: the client returns text without token ids."""
        return False

    @property
    def untrained(self) -> "ClientModel":
        """Itself; `generate` decides what is trained of a session."""
        return self

    async def chat(self, messages: list[Message], *, max_tokens: int, tools: list[dict[str, Any]] | None = None) -> Turn:
        """The reply to a conversation; an empty one if the context is full."""
        asked: Any = {"model": self.name, "messages": messages, "max_tokens": max_tokens}
        try:
            found = await self.client.chat.completions.create(**asked)
        except openai.BadRequestError as error:
            if error.code != CONTEXT_FULL:
                raise
            return Turn(finish_reason="length", usage=(0, 0))
        choice, usage = found.choices[0], found.usage
        assert usage is not None, "every answer says what it cost"
        message: Message = {"role": "assistant", "content": choice.message.content or ""}
        counted = (usage.prompt_tokens, usage.completion_tokens)
        return Turn(message=message, finish_reason=choice.finish_reason, usage=counted)


async def generate(context: Context, sample: Sample, sampling: Sampling) -> list[Sample]:
    """One sample per planner turn, as natively, because the session's calls are part of the rollout's trajectory."""
    method = AgentFlowConfig.of(context.config)
    planner = context.models[method.roles.planner]
    async with context.session(method.roles.planner) as session:
        http = openai.DefaultAsyncHttpxClient(trust_env=False)
        async with openai.AsyncOpenAI(
            base_url=session.openai_url, api_key=session.secret, timeout=None, http_client=http
        ) as client:
            model: Any = ClientModel(client=client, name=planner.name, max_model_len=planner.max_model_len)
            outside = replace(context, models={**context.models, method.roles.planner: model})
            return await native.generate(outside, sample, sampling)
