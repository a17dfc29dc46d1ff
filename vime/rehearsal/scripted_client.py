"""Clients whose replies are scripted: in a rehearsal the server computes the script's tokens, in a trial there is no server."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from vime.config import RunConfig, ServingConfig
from vime.errors import ServerError
from vime.hooks import load_hook
from vime.inside_vllm.forced_tokens import FORCED
from vime.model.load_tokenizer import load_tokenizer
from vime.rehearsal.script import Asked, Rehearsal, ScriptedReply
from vime.serving.calls import Calls
from vime.serving.client import check_room
from vime.serving.clients import make_client
from vime.serving.endpoint import Endpoint
from vime.types import Integers, Message, Turn

UNSCRIPTED_TOKENS = 48
"""Most tokens of a reply that is not scripted: a random model never ends one."""
UNSCRIPTED = "(no reply is scripted for this call)"
"""The reply to a call without a script if there is no model."""


def rehearsal_of(config: RunConfig) -> Rehearsal:
    """The rehearsal of the run's method, or one that says nothing."""
    return load_hook(config.method.rehearsal)(config) if config.method.rehearsal else Rehearsal(config)


@dataclass(slots=True)
class ScriptedClients:
    """Makes the clients of one rollout worker, which share its script."""

    config: RunConfig
    script: Rehearsal | None = None
    """The script; by default the rehearsal of the run's method, which is made where it is used."""
    has_servers: bool = True
    """False for a trial without servers: the script's tokens are then the reply."""
    _turns: Counter[str] = field(default_factory=Counter)

    def __call__(self, endpoint: Endpoint, serving: ServingConfig) -> "ScriptedClient":
        """The client of a served model."""
        tokenizer = load_tokenizer(endpoint.tokenizer or self.config.model.checkpoint)
        client = make_client(endpoint, serving) if self.has_servers else Player(endpoint, tokenizer)
        return ScriptedClient(client, endpoint.name, tokenizer, self)

    def reply(self, model: str, prompt: str, *, session: str, max_tokens: int) -> ScriptedReply | None:
        """The script's reply to a call. Raises `ServerError` where the script has it fail."""
        asked = Asked(model=model, prompt=prompt, session=session, turn=self._turns[session], max_tokens=max_tokens)
        self._turns[session] += 1
        reply = self.rehearsal.reply(asked)
        if reply is not None and reply.error:
            raise ServerError(reply.error)
        return reply

    @property
    def rehearsal(self) -> Rehearsal:
        """The script, made where it is used."""
        self.script = self.script or rehearsal_of(self.config)
        return self.script


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
        """See `TokenClient.generate`. A reply that may only be one of a few texts is left to the model, if there is one."""
        if "structured_outputs" in sampling and self.clients.has_servers:
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

    def _forced(self, reply: ScriptedReply | None) -> list[int]:
        """The tokens of a reply; one that is not cut off ends with the end of a turn."""
        if reply is None:
            return []
        ids = list(self.tokenizer.encode(reply.text, add_special_tokens=False))
        return ids if reply.cut else [*ids, self.tokenizer.eos_token_id]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)


@dataclass(slots=True)
class Player:
    """Answers with the script's tokens, in place of the client of a server. Their logprobs are 0, since they are certain."""

    endpoint: Endpoint
    tokenizer: Any
    calls: Calls = field(default_factory=Calls)

    async def generate(
        self,
        token_ids: Integers,
        *,
        sampling: dict[str, Any],
        session_id: str,
        request_id: str,
        minimum_version: int = 0,
        listener: Any = None,
    ) -> Turn:
        """See `TokenClient.generate`."""
        limit = sampling["max_tokens"]
        check_room(len(token_ids), limit, max_model_len=self.endpoint.max_model_len, name=self.endpoint.name)
        ids = (sampling.get("extra_args") or {}).get(FORCED) or self._unscripted()
        said = self._until(ids[:limit], sampling.get("stop") or ())
        ended = len(said) < len(ids[:limit]) or said[-1] == self.tokenizer.eos_token_id
        turn = Turn(
            output_ids=said,
            logprobs=[0.0] * len(said),
            weight_versions=[minimum_version] * len(said),
            finish_reason="stop" if ended else "length",
        )
        if listener is not None:
            listener.received(turn)
        return turn

    async def chat(self, messages: list[Message], *, max_tokens: int, sampling: dict[str, Any], **_: Any) -> Turn:
        """See `ChatClient.chat`."""
        ids = ((sampling.get("vllm_xargs") or {}).get(FORCED) or self._unscripted())[:max_tokens]
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        reason = "stop" if ids[-1] == self.tokenizer.eos_token_id else "length"
        return Turn(message={"role": "assistant", "content": text}, finish_reason=reason, usage=(0, len(ids)))

    def finish(self, session_id: str) -> None:
        """Does nothing, because nothing is kept for a session."""

    async def close(self) -> None:
        """Does nothing, because nothing is open."""

    def _unscripted(self) -> list[int]:
        return [*self.tokenizer.encode(UNSCRIPTED, add_special_tokens=False), self.tokenizer.eos_token_id]

    def _until(self, ids: list[int], stops: Sequence[str]) -> list[int]:
        """The tokens up to the first that completes one of the texts."""
        for end in range(1, len(ids) if stops else 0):
            if any(stop in self.tokenizer.decode(ids[:end]) for stop in stops):
                return ids[:end]
        return ids
