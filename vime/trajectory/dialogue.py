"""`Dialogue`: finds the part of a conversation that a trajectory already holds, and renders the rest.

Clients send the whole conversation with each request. The part that is already known is found by digests, so its token ids are
those that were sampled, and only new messages are rendered and tokenized. A request that goes on from an earlier reply becomes
its child. Where a conversation does not go on from a reply (a sub-agent, a compacted or edited history, a template that rewrites
earlier messages), a new root begins.

    dialogue = Dialogue(trajectory, chat_template(tokenizer, {"enable_thinking": True}))
    prompt = dialogue.prompt(messages, tools)                  # token ids; only the new part was tokenized
    call = await model.call(prompt, max_tokens=512)
    dialogue.answered(call, prompt, message, ended=True)       # `message` is what the client is answered
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from vime.trajectory.messages import ALIKE, ASSISTANT, EQUAL, calls_of, chain, in_call_order, likeness, root
from vime.trajectory.template import ChatTemplate, shape_of, thinking_of
from vime.trajectory.trajectory import Call, CallPrompt
from vime.types import Integers, Message

MAIN, SUBAGENT, COMPACTED, EDITED, RETRY = "main", "subagent", "compacted", "edited", "retry"
CONTINUED = "continued"


@dataclass(slots=True)
class Statistics:
    """Counts of one trajectory."""

    forks: Counter[str] = field(default_factory=Counter)
    """Roots but the first, by their cause or kind, and second replies after one reply."""
    kept: Counter[str] = field(default_factory=Counter)
    """Requests that went on from held tokens although the template would rewrite them, by the reason (with `fork=False`)."""
    num_prompt_tokens: int = 0
    """Tokens of all prompts."""
    num_encoded_tokens: int = 0
    """Tokens that a tokenizer had to be asked for."""


class Dialogue:
    """The conversations of one agent with one model."""

    def __init__(self, template: ChatTemplate, *, fork: bool = True) -> None:
        """Without `fork`, sampled tokens are kept as they are where the template would render earlier messages differently."""
        self.statistics = Statistics()
        self.calls: list[Call] = []
        """The calls that were answered, in the order in which they ended."""
        self._template, self._fork = template, fork
        self._known: dict[str, np.ndarray] = {}
        self._held: defaultdict[bytes, list[tuple[Call, int]]] = defaultdict(list)
        """Replies by the digest of the conversation that ends with them, and their position in it."""
        self._asked: set[bytes] = set()
        self._latest: tuple[Any, list[Message], list[bytes]] = (None, [], [])
        """Caller with tools, messages and digests of the latest prompt: most begin as it does, and comparing takes no time."""
        self._first: dict[str, list[bytes]] = {}
        """Digests of each caller's first conversation: its tools, and these with its first message."""

    def prompt(
        self,
        messages: list[Message],
        tools: list[dict[str, Any]] | None = None,
        *,
        caller: str = "",
        continues: bool = False,
        count: bool = False,
    ) -> CallPrompt:
        """Finds the conversation of this caller, and renders and tokenizes its new part.

        An assistant's message at the end is a finished turn, behind which a new one begins; with `continues` it is the beginning
        of the reply, unless it calls tools. A reply that was cut at its length goes on in any case. With `count` the
        prompt is only to be counted and leaves no trace. Raises jinja2's TemplateError for messages that the chat
        template refuses.
        """
        assert messages, "a conversation has at least one message"
        messages = self._template.fitted(in_call_order(messages))
        keys = self._keys(messages, tools, caller)
        num_known = len(self._known)
        held, position = self._find(messages, keys)
        is_cut = held is not None and position == len(messages) - 1 and held.turn.finish_reason == "length"
        continues = messages[-1]["role"] == ASSISTANT and not calls_of(messages[-1]) and (continues or is_cut)
        cause = self._cause(held, messages[position + 1 :], continues=continues) if held is not None else ""
        if cause and not self._fork and not count:
            self.statistics.kept[cause] += 1
        if held is None or (cause and self._fork):
            prompt = self._root(messages, tools, keys, held=held, cause=cause, caller=caller, continues=continues)
        else:
            prompt = self._after(held, messages, position, keys, continues=continues)
        if count:
            return prompt
        self._asked.add(keys[-1])
        self._first.setdefault(caller, keys[:2])
        self.statistics.num_prompt_tokens += len(prompt.ids)
        self.statistics.num_encoded_tokens += sum(map(len, islice(self._known.values(), num_known, None)))
        return prompt

    def num_new_characters(self, messages: list[Message], tools: list[dict[str, Any]] | None = None) -> int:
        """About how many characters of a request are to be tokenized: those after its last reply, once there are replies."""
        place = len(messages) - 1
        while place and not (self.calls and messages[place - 1]["role"] == ASSISTANT):
            place -= 1
        num_of_tools = 0 if self.calls else len(str(tools))
        return num_of_tools + sum(len(message.get("content") or "") for message in messages[place:])

    def onward(
        self, call: Call, written: Integers, messages: list[Message], tools: list[dict[str, Any]] | None = None
    ) -> CallPrompt:
        """The prompt of a reply that goes on behind text that the environment has written into the message of a call.

        `messages` end with that message as it is now, and `written` are the tokens of that text.
        """
        keys = self._keys(messages, tools, call.caller)
        about = {"kind": call.kind, "caller": call.caller}
        return CallPrompt.behind(call, written, **about, goes_on=True, keys=keys, begun=messages[-1])

    def answered(self, call: Call, prompt: CallPrompt, message: Message, *, ended: bool) -> None:
        """Adds the reply to a prompt. To be called before the client gets it, because its next request may come at once."""
        call.message, call.ended = message, ended
        call.position = len(prompt.keys) - 1 - (prompt.begun is not None)
        if prompt.parent is None:
            is_fork, kind = any(each.caller == prompt.caller for each in self.calls), prompt.kind
        else:
            is_fork, kind = prompt.parent.has_children, EDITED
            prompt.parent.has_children = True
        if is_fork:
            self.statistics.forks[prompt.cause or kind] += 1
        self.calls.append(call)
        if prompt.begun is not None:  # clients send the whole message, or its two parts
            whole = {**prompt.begun, **message, "content": (prompt.begun.get("content") or "") + (message.get("content") or "")}
            self._held[chain(prompt.keys[-2], whole)].append((call, call.position))
        self._held[chain(prompt.keys[-1], message)].append((call, len(prompt.keys) - 1))

    def _keys(self, messages: list[Message], tools: list[dict[str, Any]] | None, caller: str) -> list[bytes]:
        """The digests of a conversation: that of its tools, and one for each message with those before it."""
        known_root, known, known_keys = self._latest
        num_known = 0
        if known_keys and (caller, tools) == known_root:
            pairs = enumerate(zip(messages, known))
            num_known = next((place for place, (one, other) in pairs if one != other), min(len(messages), len(known)))
        keys = known_keys[: num_known + 1] if num_known else [root(tools, caller)]
        for message in messages[num_known:]:
            keys.append(chain(keys[-1], message))
        self._latest = ((caller, tools), messages, keys)
        return keys

    def _find(self, messages: list[Message], keys: list[bytes]) -> tuple[Call | None, int]:
        """The last reply in a conversation whose tokens are held, and its position.

        If the arguments of calls came back changed, it is the reply with the calls' ids, unless several have these.
        """
        for place in range(len(messages) - 1, -1, -1):
            alike: list[tuple[Call, int]] = []
            for reply, position in reversed(self._held.get(keys[place + 1], ())):
                worst = min(likeness(messages[each.position], each.message) for each in reply.path())
                if worst == EQUAL:
                    return reply, position
                if worst == ALIKE:
                    alike.append((reply, position))
            if len(alike) == 1:
                return alike[0]
        return None, -1

    def _cause(self, held: Call, new: list[Message], *, continues: bool) -> str:
        """The reason why a conversation cannot go on from the tokens of a reply as they are; empty if it can."""
        if not new and continues:
            return CONTINUED if held.ended else ""
        *before, last = [thinking_of(call.message) for call in held.path()]
        return self._template.change(shape_of((max(before, default=""), last), held.message, new))

    def _after(self, held: Call, messages: list[Message], position: int, keys: list[bytes], *, continues: bool) -> CallPrompt:
        """The prompt of a conversation that goes on from a reply; without new messages, the reply itself may go on."""
        new = messages[position + 1 :]
        goes_on = continues and not new
        segments = [] if goes_on else self._template.between(held.message, new, written=held.turn.output_ids)
        retried = keys[-1] in self._asked
        return CallPrompt.behind(
            held,
            self._template.encode(segments, self._known),
            keys=keys,
            kind=RETRY if retried and held.kind == MAIN else held.kind,
            caller=held.caller,
            cause=RETRY if retried else "",
            begun=messages[-1] if goes_on else None,
        )

    def _root(
        self,
        messages: list[Message],
        tools: list[dict[str, Any]] | None,
        keys: list[bytes],
        *,
        held: Call | None,
        cause: str,
        caller: str,
        continues: bool,
    ) -> CallPrompt:
        """The prompt of a conversation that begins a tree of its own."""
        segments = (self._template.continuation if continues else self._template.prompt)(messages, tools)
        kind = held.kind if held is not None and cause else self._kind(keys, caller)
        about = {"kind": kind, "cause": cause, "caller": caller, "begun": messages[-1] if continues else None}
        return CallPrompt.behind(None, self._template.encode(segments, self._known), keys=keys, **about)

    def _kind(self, keys: list[bytes], caller: str) -> str:
        """The kind of a new root, seen from the first conversation of its caller."""
        if caller not in self._first:
            return MAIN
        if keys[:2] != self._first[caller]:
            return SUBAGENT
        if keys[-1] in self._asked:
            return RETRY
        positions = (call.position for call in self.calls if call.caller == caller)
        return COMPACTED if len(keys) <= max(positions, default=0) else EDITED
