"""Clients of a rehearsal: before a request goes to its server, the method's script says which tokens the reply is to have."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from vime.config import RunConfig, ServingConfig
from vime.errors import ServerError
from vime.hooks import load_hook
from vime.inside_vllm.forced_tokens import FORCED
from vime.model.load_tokenizer import load_tokenizer
from vime.rehearsal.script import Asked, Rehearsal, Reply
from vime.serving.clients import make_client
from vime.serving.endpoint import Endpoint
from vime.types import Integers, Message, Turn

UNSCRIPTED_TOKENS = 48
"""Most tokens of a reply that is not scripted: a random model never ends one."""


def rehearsal_of(config: RunConfig) -> Rehearsal:
    """The rehearsal of the run's method, or one that says nothing."""
    return load_hook(config.method.rehearsal)(config) if config.method.rehearsal else Rehearsal(config)


@dataclass(slots=True)
class ScriptedClients:
    """Makes the clients of one rollout worker, which share its script."""

    config: RunConfig
    _rehearsal: Rehearsal | None = None
    _turns: Counter[str] = field(default_factory=Counter)

    def __call__(self, endpoint: Endpoint, serving: ServingConfig) -> "ScriptedClient":
        """The client of a served model."""
        tokenizer = load_tokenizer(endpoint.tokenizer or self.config.model.checkpoint)
        return ScriptedClient(make_client(endpoint, serving), endpoint.name, tokenizer, self)

    def reply(self, model: str, prompt: str, *, session: str, max_tokens: int) -> Reply | None:
        """The script's reply to a call. Raises `ServerError` where the script has it fail."""
        asked = Asked(model=model, prompt=prompt, session=session, turn=self._turns[session], max_tokens=max_tokens)
        self._turns[session] += 1
        reply = self.rehearsal.reply(asked)
        if reply is not None and reply.error:
            raise ServerError(reply.error)
        return reply

    @property
    def rehearsal(self) -> Rehearsal:
        """The rehearsal of the method, made where it is used."""
        if self._rehearsal is None:
            self._rehearsal = rehearsal_of(self.config)
        return self._rehearsal


@dataclass(slots=True)
class ScriptedClient:
    """A `TokenClient` or `ChatClient` whose replies are scripted."""

    client: Any
    name: str
    tokenizer: Any
    clients: ScriptedClients

    async def generate(
        self, token_ids: Integers, *, sampling: dict[str, Any], session_id: str, listener: Any = None, **options: Any
    ) -> Turn:
        """See `TokenClient.generate`. A reply that may only be one of a few texts is left to the model."""
        if "structured_outputs" in sampling:
            return await self.client.generate(token_ids, sampling=sampling, session_id=session_id, listener=listener, **options)
        prompt = self.tokenizer.decode(list(token_ids), skip_special_tokens=False)
        most = sampling["max_tokens"]
        reply = self.clients.reply(self.name, prompt, session=session_id, max_tokens=most)
        forced = self._forced(reply)
        if reply is None or reply.cut:
            most = min(most, len(forced) or UNSCRIPTED_TOKENS)
        if reply is not None and reply.seconds and listener is not None:
            listener.took(reply.seconds)
        sampling = {**sampling, "max_tokens": most, **({"extra_args": {FORCED: forced}} if forced else {})}
        return await self.client.generate(token_ids, sampling=sampling, session_id=session_id, listener=listener, **options)

    async def chat(
        self, messages: list[Message], *, max_tokens: int, sampling: dict[str, Any] | None = None, **options: Any
    ) -> Turn:
        """See `ChatClient.chat`."""
        prompt = "\n".join(f"{message.get('role')}: {message.get('content')}" for message in messages)
        reply = self.clients.reply(self.name, prompt, session="", max_tokens=max_tokens)
        forced = self._forced(reply)
        if reply is None or reply.cut:
            max_tokens = min(max_tokens, len(forced) or UNSCRIPTED_TOKENS)
        sampling = {**(sampling or {}), **({"vllm_xargs": {FORCED: forced}} if forced else {})}
        return await self.client.chat(messages, max_tokens=max_tokens, sampling=sampling, **options)

    def _forced(self, reply: Reply | None) -> list[int]:
        """The tokens of a reply; one that is not cut off ends with the end of a turn."""
        if reply is None:
            return []
        ids = list(self.tokenizer.encode(reply.text, add_special_tokens=False))
        return ids if reply.cut else [*ids, self.tokenizer.eos_token_id]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)
