"""A served model that others run, as an agent sees it: messages in, a message out; its tokens are not seen.

As a baseline of an evaluation it stands in the trained model's place: it gets the evaluation's sampling, and the trained model's
tokenizer counts and cuts for it, so that both get the same sections of a document.
"""

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
    """An endpoint with OpenAI's chat API bound to one rollout.

    `sampling` holds all that is sent: the model's own, or for a baseline the evaluation's; `chat.body` wins over both.

    Example: `turn = await context.models["judge"].chat([{"role": "user", "content": "Is 4 right?"}], max_tokens=8)`; the
    turn has no token ids, and `turn.message` may hold `tool_calls`.
    """

    chat_client: ChatClient

    @classmethod
    def of(
        cls,
        endpoint: Endpoint,
        client: ChatClient,
        session: str,
        trace: Trace,
        *,
        sampling: dict[str, float],
        tokenizer: Any = None,
    ) -> "ChatModel":
        """The model behind an endpoint; with a `tokenizer` as a baseline in the trained model's place."""
        return cls(
            sampling=sampling,
            client=client,
            chat_client=client,
            tokenizer=tokenizer,
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
            reply = await self.chat_client.chat(messages, max_tokens=max_tokens, tools=tools, sampling=self.sampling)
        return Turn(
            prompt_ids=[],
            output_ids=[],
            logprobs=[],
            weight_versions=[],
            finish_reason=reply.finish_reason,
            message=reply.message,
            usage=reply.usage,
            seconds=reply.seconds,
        )

    def render(self, messages: list[Message], *, tools: list[dict[str, Any]] | None = None) -> list[int]:
        """A baseline's conversation in the trained model's tokens, to count; without a tokenizer raises ServerError."""
        if self.tokenizer is not None:
            return super(ChatModel, self).render(messages, tools=tools)
        raise ServerError("an endpoint with a chat API takes messages: its tokens are not known")
