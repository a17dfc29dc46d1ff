"""A served model as an agent sees it: `chat` with messages or `complete` with token ids; each call returns a `Turn`.

Sampled ids are the truth: they are kept as the server sent them and never tokenized again.
"""

from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

from vime.types import Message, Turn


class Generation(Protocol):
    """What the token client returns for one request; ids, logprobs and versions have one entry per sampled token."""

    @property
    def output_ids(self) -> list[int]: ...
    @property
    def logprobs(self) -> list[float]: ...
    @property
    def weight_versions(self) -> list[int]: ...
    @property
    def finish_reason(self) -> str: ...


class Client(Protocol):
    """Token in, token out (`vime.serving.client.TokenClient`)."""

    async def generate(
        self, token_ids: list[int], *, sampling: dict[str, Any], session_id: str, request_id: str, minimum_version: int
    ) -> Generation: ...


@dataclass(kw_only=True, slots=True)
class Model:
    """One served model bound to one rollout.

    Example: `turn = await context.models["actor"].chat([{"role": "user", "content": "2+2?"}], max_tokens=8)`.
    """

    client: Client
    tokenizer: Any
    max_model_len: int
    temperature: float
    top_p: float
    session: str
    minimum_version: int = 0
    chat_template_args: dict[str, Any] = field(default_factory=dict)
    _calls: "count[int]" = field(default_factory=count)

    async def chat(self, messages: list[Message], *, max_tokens: int) -> Turn:
        """The reply to a conversation, at most `max_tokens` tokens long.

        Raises ServerError when no server answers within the time limit.
        """
        return await self.complete(self.render(messages), max_tokens=max_tokens)

    async def complete(self, token_ids: list[int], *, max_tokens: int) -> Turn:
        """The continuation of a prompt given as token ids."""
        generation = await self.client.generate(
            token_ids,
            sampling={"temperature": self.temperature, "top_p": self.top_p, "max_tokens": max_tokens},
            session_id=self.session,
            request_id=f"{self.session}-{next(self._calls)}",
            minimum_version=self.minimum_version,
        )
        text = self.tokenizer.decode(generation.output_ids, skip_special_tokens=True)
        return Turn(
            prompt_ids=token_ids,
            output_ids=generation.output_ids,
            logprobs=generation.logprobs,
            weight_versions=generation.weight_versions,
            finish_reason=generation.finish_reason,
            message={"role": "assistant", "content": text},
        )

    def render(self, messages: list[Message]) -> list[int]:
        """Token ids of a conversation with the prompt of the next reply."""
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **self.chat_template_args)
        return self.tokenizer.encode(text, add_special_tokens=False)
