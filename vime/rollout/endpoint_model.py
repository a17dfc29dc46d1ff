"""A model behind a chat API as an agent sees it: it takes messages and returns a message; its tokens are not visible.

As a baseline of an evaluation it takes the trained model's place: it gets the evaluation's sampling, and the trained model's
tokenizer counts and cuts for it, so that both get the same sections of a document.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from vime.errors import ServerError
from vime.rollout.trace import Trace
from vime.serving.client import BadRequestError
from vime.serving.external import ChatClient
from vime.trajectory.plain_text import render
from vime.types import Integers, Message, Sampling, Turn


@dataclass(kw_only=True, slots=True)
class EndpointModel:
    """A `ChatModel`: an endpoint with OpenAI's chat API, bound to one rollout.

    Example: `turn = await context.models["judge"].chat([{"role": "user", "content": "Is 4 right?"}], max_tokens=8)`; the
    turn has no token ids, and `turn.message` may hold `tool_calls`.
    """

    client: ChatClient
    name: str
    max_model_len: int
    sampling: dict[str, float] = field(default_factory=dict)
    """The sampling parameters that are sent: the model's own, or for a baseline the evaluation's; `chat.body` overrides both."""
    tokenizer: Any = None
    """The trained model's tokenizer, for a baseline."""
    trace: Trace = field(default_factory=Trace)

    @property
    def shows_tokens(self) -> bool:
        """False."""
        return False

    async def chat(
        self,
        messages: list[Message],
        *,
        max_tokens: int,
        tools: list[dict[str, Any]] | None = None,
        body: dict[str, Any] | None = None,
    ) -> Turn:
        """The reply to a conversation, at most `max_tokens` tokens long; `body` holds further fields of the request.

        Raises ServerError when the endpoint does not answer, BadRequestError when it refuses.
        """
        with self.trace.span(self.name, kind="generation"):
            return await self.client.chat(messages, max_tokens=max_tokens, tools=tools, sampling=self.sampling | (body or {}))

    def as_baseline(self, sampling: Sampling, tokenizer: Callable[[], Any]) -> "EndpointModel":
        """The model with the sampling that the trained one would have here, counting in that one's tokens."""
        own = {"temperature": sampling.temperature, "top_p": sampling.top_p}
        return replace(self, sampling=own, tokenizer=tokenizer())

    async def complete(self, token_ids: Integers, *, max_tokens: int, stop: tuple[str, ...] = ()) -> Turn:
        """Raises BadRequestError: such an endpoint takes messages and shows no tokens."""
        raise BadRequestError(f"{self.name} is an endpoint with a chat API: call chat(messages), not complete(token_ids)")

    def render(self, messages: list[Message], *, tools: list[dict[str, Any]] | None = None) -> list[int]:
        """A baseline's conversation in the trained model's tokens, to count; without a tokenizer raises ServerError."""
        if self.tokenizer is None:
            raise ServerError(f"{self.name} is an endpoint with a chat API: its tokens are not known")
        return render(self.tokenizer, messages, **self.template_args(tools))

    def template_args(self, tools: list[dict[str, Any]] | None) -> dict[str, Any]:
        """What the trained model's chat template is given besides the messages, to count."""
        return {"tools": tools} if tools else {}
