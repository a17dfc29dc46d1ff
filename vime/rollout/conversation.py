"""A conversation of several turns that keeps its token ids: sampled ids stay unchanged, and only new messages are rendered.

conversation = Conversation(model, messages, tools=tools)
turn = await conversation.reply(max_tokens=512)
conversation.add([{"role": "tool", "content": "42"}])
turn = await conversation.reply(max_tokens=512)
samples = conversation.samples(sample)          # one, unless the template made the conversation fork
"""

import secrets
from dataclasses import dataclass
from typing import Any

from vime.rollout.model import TokenModel
from vime.trajectory.aside import aside
from vime.trajectory.plain_text import Segment, after, control_tokens, joined
from vime.trajectory.sequence import TokenSequence
from vime.types import Message, Sample, Turn

FORKS = "conversation_forks"
"""Counts per rollout how often the chat template rewrote earlier messages (dropped earlier thinking, say)."""
KEPT = "conversation_kept"
"""Counts per rollout how often the held ids were kept all the same, because of `fork=False`."""


@dataclass(kw_only=True, slots=True)
class Branch:
    """A token sequence of the conversation, and the text that its ids say."""

    tokens: TokenSequence
    text: str
    """As rendered by the template and continued by the model."""
    prompt_characters: int
    sampled_characters: int = 0
    """Length of the text up to the end of the last reply."""

    def add_environment(self, ids: list[int], text: str) -> None:
        """Adds tokens that nobody sampled."""
        self.tokens.add_environment(ids)
        self.text += text

    def add_turn(self, turn: Turn, text: str) -> None:
        """Adds a reply."""
        self.tokens.add_turn(turn)
        self.text += text
        self.sampled_characters = len(self.text)

    def sample(self, template: Sample, metadata: dict[str, Any]) -> Sample:
        """The branch up to its last sampled token, ready to be trained."""
        return self.tokens.sample(template, self.text[self.prompt_characters : self.sampled_characters], **metadata)


class Conversation:
    """The messages of a conversation and the token ids that stand for them."""

    def __init__(
        self, model: TokenModel, messages: list[Message], *, tools: list[dict[str, Any]] | None = None, fork: bool = True
    ) -> None:
        """With `fork`, a new branch begins where the template rewrites earlier messages. Without, earlier replies stay as they
        were sampled even there."""
        self.messages = list(messages)
        self.turns: list[Turn] = []
        self._model, self._tools, self._fork = model, tools, fork
        self._tokens = control_tokens(model.tokenizer)
        self._branches: list[Branch] = []
        self._own: set[int] = set()
        """Positions of replies whose text has exactly the control tokens that were sampled: they are rendered as is."""
        self._num_rendered = 0
        """How many messages the newest branch contains."""
        self._rewritten = False
        """Whether messages were dropped, so that the newest branch cannot be continued."""

    def add(self, messages: list[Message]) -> None:
        """Adds messages of the user, a tool or the environment."""
        self.messages += messages

    def drop(self, start: int, stop: int) -> None:
        """Removes messages, including replies of the model; the next prompt is rendered from scratch, as a new branch."""
        del self.messages[start:stop]
        count = stop - start
        self._own = {index if index < start else index - count for index in self._own if not start <= index < stop}
        self._num_rendered, self._rewritten = 0, True

    def prompt_ids(self) -> list[int]:
        """Token ids of the conversation up to the point where the next reply begins; renders new messages."""
        if self._num_rendered < len(self.messages) or not self._branches:
            self._extend()
            self._num_rendered = len(self.messages)
        return list(self._branches[-1].tokens.ids)

    async def reply(self, *, max_tokens: int) -> Turn:
        """Samples the model's next reply and adds it to the conversation.

        Raises ServerError if no server answers within the time limit, ContextFullError if the conversation leaves no room for a
        reply in the model's context.
        """
        prompt_ids = await aside(self._num_characters(), self.prompt_ids)
        turn = await self._model.complete(prompt_ids, max_tokens=max_tokens)
        self.turns.append(turn)
        text, content, reads_again = await aside(len(turn.output_ids), self._read, turn)
        self._branches[-1].add_turn(turn, text)
        if reads_again:
            self._own.add(len(self.messages))
        self.messages.append({"role": "assistant", "content": content})
        self._num_rendered = len(self.messages)
        return turn

    def own_text(self, turn: Turn) -> str:
        """The text of a reply with its control tokens (`<tool_call>`), except the one that ends it."""
        ids = turn.output_ids
        if ids and ids[-1] == self._model.tokenizer.eos_token_id:
            ids = ids[:-1]
        return self._model.tokenizer.decode(ids, skip_special_tokens=False)

    def samples(self, template: Sample, /, **metadata: Any) -> list[Sample]:
        """One trainable sequence per branch, ending with its last sampled token."""
        return [branch.sample(template, metadata) for branch in self._branches if branch.tokens.turns]

    @property
    def num_tokens(self) -> int:
        """Length in tokens of the newest branch, without messages that are not yet rendered."""
        return len(self._branches[-1].tokens.ids) if self._branches else 0

    def _num_characters(self) -> int:
        """About how many characters rendering has to process: the whole conversation, or none if no message is new."""
        new = self.messages[self._num_rendered :]
        if self._branches and not new:
            return 0
        held = len(self._branches[-1].text) if self._branches else 0
        return held + sum(len(message["content"]) for message in new if isinstance(message.get("content"), str))

    def _read(self, turn: Turn) -> tuple[str, str, bool]:
        """A reply's text, its message's content, and whether the text tokenizes with the control tokens that were sampled."""
        tokenizer = self._model.tokenizer
        text, content = tokenizer.decode(turn.output_ids, skip_special_tokens=False), self.own_text(turn)
        end = tokenizer.eos_token or ""
        read = tokenizer.encode(text, add_special_tokens=False)
        reads_again = self._tokens.count(read) == self._tokens.count(turn.output_ids) and not (end and end in content)
        return text, content, reads_again

    def _extend(self) -> None:
        """Renders new messages and appends them to the newest branch, or renders all messages into a new one."""
        whole = self._tokens.segments(self.messages, own=self._own, **self._template())
        text = joined(whole)
        if not self._branches or self._rewritten:
            self._begin(whole)
            self._rewritten = False
            return
        held = self._branches[-1]
        if text.startswith(held.text):
            new = after(whole, len(held.text))
        elif self._fork:
            self._model.trace.count(FORKS)
            self._begin(whole)
            return
        else:
            self._model.trace.count(KEPT)
            new = self._after_reply(held.text)
        held.add_environment(self._tokens.encode(new), joined(new))

    def _begin(self, segments: list[Segment]) -> None:
        ids, text = self._tokens.encode(segments), joined(segments)
        self._branches.append(Branch(tokens=TokenSequence.begin(ids), text=text, prompt_characters=len(text)))

    def _after_reply(self, text: str) -> list[Segment]:
        """What the template puts between two replies: the end of the first, the new messages, the prompt of the next."""
        mark = f"reply{secrets.token_hex(12)}"
        before: list[Message] = [{"role": "user", "content": "?"}, {"role": "assistant", "content": mark}]
        segments = self._tokens.segments([*before, *self.messages[self._num_rendered :]], **self._template())
        start = joined(segments).index(mark) + len(mark)
        end = self._model.tokenizer.eos_token
        rest = after(segments, start)
        return after(rest, len(end)) if end and text.endswith(end) and joined(rest).startswith(end) else rest

    def _template(self) -> dict[str, Any]:
        return {"add_generation_prompt": True, **self._model.template_args(self._tools)}
