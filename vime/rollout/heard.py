"""Clients of served models whose every call is told to somebody as soon as it has been answered."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from vime.config import ServingConfig
from vime.model.load_tokenizer import load_tokenizer
from vime.report.transcript import ShownCall
from vime.rollout.served import MakeClient
from vime.serving.clients import make_client
from vime.serving.endpoint import Endpoint
from vime.types import Integers, Message, Turn


@dataclass(slots=True)
class HeardClient:
    """A `TokenClient` or `ChatClient`, whose calls `tell` hears of."""

    client: Any
    name: str
    tokenizer: Any
    tell: Callable[[ShownCall], None]
    _last: list[int] = field(default_factory=list)

    async def generate(self, token_ids: Integers, **options: Any) -> Turn:
        """See `TokenClient.generate`."""
        turn = await self.client.generate(token_ids, **options)
        prompt = list(token_ids)
        num_known = next((n for n, (a, b) in enumerate(zip(prompt, self._last)) if a != b), min(len(prompt), len(self._last)))
        self._last = [*prompt, *turn.output_ids]
        self.tell(
            ShownCall(
                model=self.name,
                prompt=self._text(prompt[num_known:]),
                reply=self._text(list(turn.output_ids)),
                turn=turn,
                num_prompt_tokens=len(prompt),
                num_known_tokens=num_known,
            )
        )
        return turn

    async def chat(self, messages: list[Message], **options: Any) -> Turn:
        """See `ChatClient.chat`."""
        turn = await self.client.chat(messages, **options)
        prompt = "\n".join(f"{message.get('role')}: {message.get('content')}" for message in messages)
        self.tell(ShownCall(model=self.name, prompt=prompt, reply=str(turn.message), turn=turn, num_prompt_tokens=None))
        return turn

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)

    def _text(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=False)


def heard_clients(tell: Callable[[ShownCall], None], make_client: MakeClient = make_client) -> MakeClient:
    """What makes clients of endpoints for `ServedModels`, each with somebody who listens."""

    def make(endpoint: Endpoint, config: ServingConfig) -> HeardClient:
        tokenizer = load_tokenizer(endpoint.tokenizer) if endpoint.chat is None else None
        return HeardClient(make_client(endpoint, config), endpoint.name, tokenizer, tell)

    return make
