"""A served model that others run, as an agent sees it: messages in, a message out; its tokens are not seen."""

from dataclasses import dataclass
from typing import Any

from vime.errors import ServerError
from vime.rollout.model import Model
from vime.rollout.trace import Trace
from vime.serving.endpoint import Endpoint
from vime.serving.external import ChatClient
from vime.types import Message, Turn


@dataclass(kw_only=True, slots=True)
class ChatModel(Model):
    """An endpoint with OpenAI's chat API bound to one rollout; sampling is the endpoint's, or what `chat.body` says.

    Example: `turn = await context.models["judge"].chat([{"role": "user", "content": "Is 4 right?"}], max_tokens=8)`; the
    turn has no token ids, and `turn.message` may hold `tool_calls`.
    """

    chat_client: ChatClient

    @classmethod
    def of(cls, endpoint: Endpoint, client: ChatClient, session: str, trace: Trace) -> "ChatModel":
        """The model behind an endpoint."""
        return cls(
            client=client,
            chat_client=client,
            tokenizer=None,
            max_model_len=endpoint.max_model_len,
            temperature=1.0,
            top_p=1.0,
            session=session,
            name=endpoint.name,
            trace=trace,
        )

    async def chat(self, messages: list[Message], *, max_tokens: int, tools: list[dict[str, Any]] | None = None) -> Turn:
        """The reply to a conversation, at most `max_tokens` tokens long.

        Raises ServerError when the endpoint does not answer, BadRequestError when it refuses.
        """
        with self.trace.span(self.name, kind="generation"):
            reply = await self.chat_client.chat(messages, max_tokens=max_tokens, tools=tools)
        return Turn(
            prompt_ids=[],
            output_ids=[],
            logprobs=[],
            weight_versions=[],
            finish_reason=reply.finish_reason,
            message=reply.message,
        )

    def render(self, messages: list[Message], *, tools: list[dict[str, Any]] | None = None) -> list[int]:
        """There is no tokenizer: raises ServerError."""
        raise ServerError("an endpoint with a chat API takes messages: its tokens are not known")
