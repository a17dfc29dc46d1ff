"""Messages between the two sides of the bridge to Agent Lightning, and the record of a model call."""

import json
from dataclasses import dataclass, field
from typing import Any, Literal

BRIDGE_VARIABLE = "VIME_LIGHTNING_BRIDGE"
"""The environment variable that tells vime the URL of the bridge."""
TASK_FIELD = "agent_lightning_task"
"""The field of vime's rows with the place of the row in Agent Lightning's data set."""
MODEL = "policy"
DONE = b"[DONE]"


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutState:
    """The state of a rollout of Agent Lightning.

    Example: `RolloutState(rollout_id="ro-1", attempt_id="at-1", runner="worker-0", end=None, reason="its attempt is running")`.
    """

    rollout_id: str
    attempt_id: str
    """"" while no runner has begun."""
    runner: str
    end: Literal["succeeded", "failed"] | None
    """The end of the call; None while it is under way."""
    reason: str


@dataclass(kw_only=True, slots=True)
class RecordedChoice:
    """The tokens of one answer. RecordedChoice(token_ids=[5, 2], logprobs=[-0.1, -0.7], weight_versions=[3, 3])"""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    weight_versions: list[int] = field(default_factory=list)


@dataclass(kw_only=True, slots=True)
class RecordedCall:
    """One call of Chat Completions, from whole answers or from the chunks of a stream.

    Example: `RecordedCall(response_id="chatcmpl-1", prompt_ids=[1, 4], choices=[RecordedChoice(token_ids=[5, 2], …)])`.
    """

    response_id: str = ""
    prompt_ids: list[int] = field(default_factory=list)
    choices: list[RecordedChoice] = field(default_factory=list)
    began: float = 0.0
    ended: float = 0.0
    """Seconds since 1970."""

    @property
    def is_known(self) -> bool:
        """True if its tokens are known; they are not behind an endpoint, and in an answer that broke off."""
        return bool(self.prompt_ids and self.choices and all(choice.token_ids for choice in self.choices))

    def add(self, part: dict[str, Any]) -> None:
        """Adds an answer with `return_token_ids`, or a chunk of one."""
        self.response_id = part.get("id") or self.response_id
        self.prompt_ids = part.get("prompt_token_ids") or self.prompt_ids
        for choice in part.get("choices") or ():
            while len(self.choices) <= choice["index"]:
                self.choices.append(RecordedChoice())
            held = self.choices[choice["index"]]
            held.token_ids += choice.get("token_ids") or ()
            held.weight_versions += choice.get("weight_versions") or ()
            held.logprobs += [token["logprob"] for token in (choice.get("logprobs") or {}).get("content") or ()]


class EventSplitter:
    """Cuts the bytes of a stream into whole server-sent events."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The events that are complete with these bytes, each with its end."""
        *events, self._rest = (self._rest + data).split(b"\n\n")
        return [event + b"\n\n" for event in events]


def data_of(event: bytes) -> dict[str, Any] | None:
    """The object in an event; None for the last one, which has none."""
    lines = [line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")]
    data = b"\n".join(lines)
    return None if not data or data == DONE else json.loads(data)
