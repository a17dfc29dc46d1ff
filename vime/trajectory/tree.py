"""`Trajectory`: everything that a model sampled for one client, as a tree of replies that share their beginnings.

Clients send the whole conversation with each request. The part that is already known is found by digests, so its token ids are
those that were sampled, and only new messages are rendered and tokenized. A request that goes on from an earlier reply becomes
its child. Where a conversation does not go on from a reply (a sub-agent, a compacted or edited history, a template that rewrites
earlier messages), a new root begins. Every sampled token is trained in exactly one of the sequences that `samples` returns.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from vime.trajectory.messages import ALIKE, ASSISTANT, EQUAL, calls_of, chain, in_call_order, likeness, root
from vime.trajectory.reply import RenderedPrompt, ReplyNode
from vime.trajectory.sequence import TokenSequence
from vime.trajectory.template import ChatTemplate, shape_of
from vime.types import Column, Message, Sample, Turn

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


class Trajectory:
    """The tree of one session with one model."""

    def __init__(self, template: ChatTemplate, *, fork: bool = True) -> None:
        """Without `fork`, sampled tokens are kept as they are where the template would render earlier messages differently."""
        self.statistics = Statistics()
        self.replies: list[ReplyNode] = []
        """All replies, in the order in which they ended."""
        self._template, self._fork = template, fork
        self._known: dict[str, np.ndarray] = {}
        self._held: defaultdict[bytes, list[tuple[ReplyNode, int]]] = defaultdict(list)
        """Replies by the digest of the conversation that ends with them, and their position in it."""
        self._asked: set[bytes] = set()
        self._latest: tuple[Any, list[Message], list[bytes]] = (None, [], [])
        """Tools, messages and digests of the latest prompt. Most prompts begin as the one before, and comparing takes no time."""
        self._first: list[bytes] = []
        """Digests of the first conversation: its tools, and these with its first message."""

    def prompt(
        self,
        messages: list[Message],
        tools: list[dict[str, Any]] | None = None,
        *,
        continues: bool = False,
        count: bool = False,
    ) -> RenderedPrompt:
        """Finds the conversation in the tree, and renders and tokenizes what is new of it.

        An assistant's message at the end is a finished turn, behind which a new one begins; with `continues` it is the beginning
        of the reply, unless it calls tools. A reply of the tree that was cut at its length goes on in any case. With `count` the
        prompt is only to be counted and leaves no trace in the tree. Raises jinja2's TemplateError for messages that the chat
        template refuses.
        """
        assert messages, "a conversation has at least one message"
        messages = self._template.fitted(in_call_order(messages))
        keys = self._keys(messages, tools)
        if not count:
            self._first = self._first or keys[:2]
        num_known = len(self._known)
        held, position = self._find(messages, keys)
        is_cut = held is not None and position == len(messages) - 1 and held.turn.finish_reason == "length"
        continues = messages[-1]["role"] == ASSISTANT and not calls_of(messages[-1]) and (continues or is_cut)
        cause = self._cause(held, messages[position + 1 :], continues=continues) if held is not None else ""
        if cause and not self._fork and not count:
            self.statistics.kept[cause] += 1
        if held is None or (cause and self._fork):
            prompt = self._root(messages, tools, keys, held=held, cause=cause, continues=continues)
        else:
            prompt = self._after(held, messages, position, keys, continues=continues)
        if count:
            return prompt
        self._asked.add(keys[-1])
        self.statistics.num_prompt_tokens += len(prompt.ids)
        self.statistics.num_encoded_tokens += sum(map(len, islice(self._known.values(), num_known, None)))
        return prompt

    def num_new_characters(self, messages: list[Message], tools: list[dict[str, Any]] | None = None) -> int:
        """About how many characters of a request are to be tokenized: those after its last reply, once there are replies."""
        place = len(messages) - 1
        while place and not (self.replies and messages[place - 1]["role"] == ASSISTANT):
            place -= 1
        num_of_tools = 0 if self.replies else len(str(tools))
        return num_of_tools + sum(len(message.get("content") or "") for message in messages[place:])

    def record(self, prompt: RenderedPrompt, turn: Turn, message: Message, *, ended: bool) -> ReplyNode:
        """Adds a reply to the tree. To be called before the client gets its answer, because its next request may come at once."""
        position = len(prompt.keys) - 1 - (prompt.begun is not None)
        reply = ReplyNode(
            parent=prompt.parent,
            environment=prompt.environment,
            turn=turn,
            message=message,
            position=position,
            kind=prompt.kind,
            cause=prompt.cause,
            ended=ended,
        )
        if prompt.parent is None:
            is_fork, kind = bool(self.replies), prompt.kind
        else:
            is_fork, kind = prompt.parent.has_children, EDITED
            prompt.parent.has_children = True
        if is_fork:
            self.statistics.forks[prompt.cause or kind] += 1
        self.replies.append(reply)
        if prompt.begun is not None:  # clients send the whole message, or its two parts
            whole = {**prompt.begun, **message, "content": (prompt.begun.get("content") or "") + (message.get("content") or "")}
            self._held[chain(prompt.keys[-2], whole)].append((reply, position))
        self._held[chain(prompt.keys[-1], message)].append((reply, len(prompt.keys) - 1))
        return reply

    def samples(self, template: Sample, /, **metadata: Any) -> list[Sample]:
        """One sequence for each reply without a successor. A beginning that several of them share is trained in the first.

        Sequences whose tokens are all trained elsewhere, or were never delivered, are left out.
        """
        done: set[int] = set()
        found: list[Sample] = []
        for leaf in self.replies:
            path = [] if leaf.has_children else leaf.path()
            own = {id(reply) for reply in path if reply.delivered and reply.turn.output_ids and id(reply) not in done}
            while path and id(path[-1]) not in own:
                path.pop()
            if not path:
                continue
            done |= own
            sequence = TokenSequence.begin(path[0].environment)
            for reply in path:
                if reply is not path[0]:
                    sequence.add_environment(reply.environment)
                sequence.add_turn(reply.turn, trained=id(reply) in own)
            last = path[-1]
            said = last.message.get("content")
            text = said or self._template.text(last.turn.output_ids)  # a reply may only call a tool
            found.append(sequence.sample(template, text, kind=last.kind, cause=path[0].cause, **metadata))
        return found

    def _keys(self, messages: list[Message], tools: list[dict[str, Any]] | None) -> list[bytes]:
        """The digests of a conversation: that of its tools, and one for each message with those before it."""
        known_tools, known, known_keys = self._latest
        num_known = 0
        if known_keys and tools == known_tools:
            pairs = enumerate(zip(messages, known))
            num_known = next((place for place, (one, other) in pairs if one != other), min(len(messages), len(known)))
        keys = known_keys[: num_known + 1] if num_known else [root(tools)]
        for message in messages[num_known:]:
            keys.append(chain(keys[-1], message))
        self._latest = (tools, messages, keys)
        return keys

    def _find(self, messages: list[Message], keys: list[bytes]) -> tuple[ReplyNode | None, int]:
        """The last reply in a conversation whose tokens are held, and its position.

        If the arguments of calls came back changed, it is the reply with the calls' ids, unless several have these.
        """
        for place in range(len(messages) - 1, -1, -1):
            alike: list[tuple[ReplyNode, int]] = []
            for reply, position in reversed(self._held.get(keys[place + 1], ())):
                worst = min(likeness(messages[each.position], each.message) for each in reply.path())
                if worst == EQUAL:
                    return reply, position
                if worst == ALIKE:
                    alike.append((reply, position))
            if len(alike) == 1:
                return alike[0]
        return None, -1

    def _cause(self, held: ReplyNode, new: list[Message], *, continues: bool) -> str:
        """Why a conversation cannot go on from the tokens of a reply as they are; empty if it can."""
        if not new and continues:
            return CONTINUED if held.ended else ""
        thinks = [bool(reply.message.get("reasoning_content")) for reply in held.path()]
        return self._template.change(shape_of((any(thinks[:-1]), thinks[-1]), held.message, new))

    def _after(
        self, held: ReplyNode, messages: list[Message], position: int, keys: list[bytes], *, continues: bool
    ) -> RenderedPrompt:
        """The prompt of a conversation that goes on from a reply; without new messages, the reply itself may go on."""
        new = messages[position + 1 :]
        goes_on = continues and not new
        segments = [] if goes_on else self._template.between(held.message, new, written=held.turn.output_ids)
        environment = _ids(self._template.encode(segments, self._known))
        parts = [part for reply in held.path() for part in (reply.environment, reply.turn.output_ids)]
        retried = keys[-1] in self._asked
        return RenderedPrompt(
            ids=_ids(np.concatenate([np.asarray(part) for part in (*parts, environment)])),
            parent=held,
            environment=environment,
            keys=keys,
            kind=RETRY if retried and held.kind == MAIN else held.kind,
            cause=RETRY if retried else "",
            begun=messages[-1] if goes_on else None,
        )

    def _root(
        self,
        messages: list[Message],
        tools: list[dict[str, Any]] | None,
        keys: list[bytes],
        *,
        held: ReplyNode | None,
        cause: str,
        continues: bool,
    ) -> RenderedPrompt:
        """The prompt of a conversation that begins a tree of its own."""
        segments = (self._template.continuation if continues else self._template.prompt)(messages, tools)
        ids = _ids(self._template.encode(segments, self._known))
        kind = held.kind if held is not None and cause else self._kind(keys)
        begun = messages[-1] if continues else None
        return RenderedPrompt(ids=ids, parent=None, environment=ids, keys=keys, kind=kind, cause=cause, begun=begun)

    def _kind(self, keys: list[bytes]) -> str:
        """What a new root is, seen from the first conversation."""
        if not self._asked:
            return MAIN
        if keys[:2] != self._first:
            return SUBAGENT
        if keys[-1] in self._asked:
            return RETRY
        return COMPACTED if len(keys) <= max((reply.position for reply in self.replies), default=0) else EDITED


def _ids(ids: Any) -> Column[int]:
    return Column(np.asarray(ids, np.int32), np.int32)
