"""An environment of an OpenEnv server, over its WebSocket: no package of OpenEnv is needed here.

    +method=environment method.environment=openenv 'method.settings={url: "http://127.0.0.1:8000"}'

A server has few places, one by default: a rollout waits for one. Its schema says what an action is: a reply is JSON, or the bare
value of the only required field.
"""

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import count
from typing import Any

import aiohttp

from vime.data.split import Split
from vime.environments.environment import IllegalMove, NoPlaceError, Observation, Outcome, Reply, Row, in_split, tells_of_losses
from vime.errors import ConfigError, Problem, SandboxError, describe

REPLY_CODES = ("VALIDATION_ERROR", "INVALID_JSON")
"""Codes of errors that are the reply's; the others are the environment's or the server's."""
CAPACITY = "capacity"
"""A word of the error with which a server without a free place answers."""
LOST = (aiohttp.ClientError, OSError)
MAX_MESSAGE_BYTES = 2**26
CLOSE_SECONDS = 5.0


class OpenEnv:
    """The environment of one server, for example `OpenEnv(url="http://127.0.0.1:8000", reset={"level": 2})`."""

    seats = ("agent",)

    def __init__(
        self, *, url: str, reset: Mapping[str, Any] | None = None, instruction: str | None = None, lost: str = "repeat"
    ) -> None:
        """`reset` is sent with each reset, beside the row's seed. Without an `instruction` the action's schema is shown.

        If a step raises in the server, `lost=repeat` runs the rollout again; `lost=tell` shows the model the error, as of an
        illegal move, for environments that refuse moves so. Raises ConfigError for something that is no URL.
        """
        if not url.startswith(("http://", "https://")):
            remedy = "is no URL of a server: use http://HOST:PORT, without a path"
            raise ConfigError([Problem(key="method.settings.url", value=url, remedy=remedy)])
        self.url, self.reset, self.instruction = url.rstrip("/"), dict(reset or {}), instruction
        self.tells = tells_of_losses(lost)
        self._has_answered = False

    def rows(self, *, split: Split, num_items: int, seed: int) -> Iterable[Row]:
        """Seeds of resets."""
        candidates = ({"key": f"openenv, seed {number}", "seed": number} for number in count(seed * 2**20))
        return in_split(candidates, split=split, num_items=num_items)

    async def open(self, row: Row) -> "Episode":
        """A session of the server, after its reset.

        Raises NoPlaceError if all of its sessions are taken, or if it does not answer any more: it may be starting again. A
        server that never answered is a SandboxError.
        """
        http = aiohttp.ClientSession(trust_env=False)
        try:
            try:
                async with http.get(f"{self.url}/schema") as answer:
                    schema = (await answer.json(content_type=None))["action"]
                socket = await http.ws_connect(f"{self.url}/ws", max_msg_size=MAX_MESSAGE_BYTES)
            except LOST as error:
                if not self._has_answered:
                    raise
                raise NoPlaceError(f"{self.url} does not answer any more ({describe(error)})") from error
            self._has_answered = True
            episode = Episode(self, http, socket, schema)
            first = await episode.ask("reset", {**self.reset, "seed": row["seed"]})
            if first["type"] != "observation":
                said = str(first.get("data", {}).get("message", first))
                raise NoPlaceError(said) if CAPACITY in said.lower() else SandboxError(f"{self.url}: {said}")
            episode.take(first["data"])
        except LOST as error:
            await http.close()
            raise SandboxError(f"{self.url}: {describe(error)}") from error
        except BaseException:  # raised again: the connection is closed in any case
            await http.close()
            raise
        return episode


class Episode:
    """One session of a server."""

    def __init__(self, made: OpenEnv, http: aiohttp.ClientSession, socket: Any, schema: Mapping[str, Any]) -> None:
        self._made, self._http, self._socket, self._schema = made, http, socket, schema
        self._seen: Any = None
        self._is_over, self._is_first = False, True

    async def ask(self, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """The server's answer to a message. Raises SandboxError if it closes the session."""
        try:
            await self._socket.send_json({"type": kind, "data": data})
            answer = await self._socket.receive()
        except LOST as error:
            raise SandboxError(f"{self._made.url}: {describe(error)}") from error
        if answer.type is not aiohttp.WSMsgType.TEXT:
            said = f"{answer.data} {answer.extra or ''}".strip()
            raise (NoPlaceError if CAPACITY in said.lower() else SandboxError)(f"{self._made.url} closed the session: {said}")
        return json.loads(answer.data)

    def take(self, state: Mapping[str, Any]) -> float:
        """Keeps an observation and returns its reward."""
        self._seen, self._is_over = state["observation"], bool(state.get("done"))
        return float(state.get("reward") or 0.0)

    async def observe(self) -> Observation | None:
        """The last observation as JSON, and first the instruction."""
        if self._is_over:
            return None
        messages = [{"role": "user", "content": self._seen if isinstance(self._seen, str) else json.dumps(self._seen)}]
        if self._is_first:
            messages.insert(0, {"role": "system", "content": self._instruction()})
        self._is_first = False
        return Observation(content=messages)

    async def act(self, reply: Reply) -> float:
        """One step. An action that the server does not accept is an illegal move, with the server's words.

        Raises SandboxError for an error of the environment.
        """
        answer = await self.ask("step", self._action(reply.text))
        if answer["type"] == "error":
            about = answer.get("data") or {}
            errors = about.get("errors") or [{"msg": about.get("message", "the server refused it")}]
            said = "; ".join(str(each.get("msg", each)) for each in errors)
            if about.get("code", REPLY_CODES[0]) in REPLY_CODES or self._made.tells:
                raise IllegalMove(said)
            raise SandboxError(f"{self._made.url}: {said} ({about['code']})")
        return self.take(answer["data"])

    async def outcome(self) -> Outcome:
        """The sum of the rewards of all steps."""
        return Outcome()

    async def close(self) -> None:
        """Ends the session, so that its place is free."""
        with suppress(*LOST, RuntimeError):
            await self._socket.send_json({"type": "close"})
        with suppress(*LOST, RuntimeError):
            await self._socket.close()
        await self._http.close()

    def _instruction(self) -> str:
        if self._made.instruction is not None:
            return self._made.instruction
        return (
            f"Reply with one action and nothing else: {json.dumps({'fields': self._fields(), **self._schema.get('$defs', {})})}"
        )

    def _fields(self) -> dict[str, Any]:
        return {name: about for name, about in self._schema.get("properties", {}).items() if name != "metadata"}

    def _action(self, text: str) -> dict[str, Any]:
        """The action of a reply: an object of JSON, or the value of the only field that is required."""
        with suppress(ValueError):
            if isinstance(found := json.loads(text), dict):
                return found
        needed = self._schema.get("required", ())
        if len(needed) != 1:
            raise IllegalMove(f"Reply with an object of JSON with the fields {', '.join(self._fields())}.")
        kind = self._fields().get(needed[0], {}).get("type")
        try:
            value = {"integer": int, "number": float}.get(kind, str)(text.strip())
        except ValueError as error:
            raise IllegalMove(f"{needed[0]} is a number.") from error
        return {needed[0]: value}
