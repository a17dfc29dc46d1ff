"""`Conversation`: a cursor on the rollout's trajectory, with which an agent talks to a model and loses no token.

    talk = context.models["actor"].conversation(messages, tools=TOOLS)
    while calls := (await talk.reply(max_tokens=512)).tool_calls:
        talk.add(await toolbox.results(calls))
    return context.samples(sample)

Sampled token ids stay as they are, and only new messages are rendered. Where the chat template renders earlier messages
differently once others follow (it drops earlier thinking, say), or where messages were taken out, a new sequence begins.
"""

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from vime.chat.reply_reader import ReplyReader
from vime.chat.request import ChatRequest
from vime.errors import BadRequestError, ContextFullError
from vime.trajectory.aside import SHORT_PROMPT, aside, in_thread
from vime.trajectory.dialogue import Dialogue
from vime.trajectory.messages import ASSISTANT
from vime.trajectory.plain_text import control_tokens
from vime.trajectory.template import chat_template
from vime.trajectory.trajectory import Call, CallPrompt
from vime.types import Message, Sample, Turn

if TYPE_CHECKING:
    from vime.chat.served_model import ServedModel

FORKS = "conversation_forks"
"""Counts per rollout how often the chat template rewrote earlier messages (dropped earlier thinking, say)."""
KEPT = "conversation_kept"
"""Name of a count per rollout: the number of times that held ids were kept because of `fork=False`."""


class Conversation:
    """Messages, and the calls in which a model has replied to them; made by `model.conversation`."""

    def __init__(
        self,
        model: "ServedModel",
        messages: list[Message] | str,
        *,
        tools: list[dict[str, Any]] | None = None,
        fork: bool = True,
        parses: bool | None = None,
    ) -> None:
        """`messages` are a conversation, or one plain text for the model to continue, without a chat template.

        With `fork`, a new sequence begins where the template rewrites earlier messages; without, earlier replies stay as they
        were sampled even there. With `parses` (by default where there are tools) the model's parsers, those of vLLM, read
        reasoning and tool calls of each reply; without, its text has all that was sampled.
        """
        self.messages: list[Message] = [] if isinstance(messages, str) else list(messages)
        """Messages of the agent and the model's replies; may be edited between two replies."""
        self.calls: list[Call] = []
        self._model, self._tools = model, tools
        self._parses = bool(tools) if parses is None else parses
        self._dialogue: Dialogue | None = None
        """Finds the part of the messages that is already held; None for a model whose tokens are not known."""
        if model.shows_tokens:
            self._dialogue = Dialogue(chat_template(model.tokenizer, model.template_args(None)), fork=fork)
        self._written: list[int] | None = self._encoded(messages) if isinstance(messages, str) else None
        """Tokens that the environment has written into the message that the next reply continues; None if that is a new one."""

    def add(self, new: list[Message] | Message | str) -> None:
        """Adds messages of the user, a tool or the environment, or text inside the model's own message.

        The model continues such a text, for example the output of a program in the middle of its answer. It is never read as
        control tokens. Raises ValueError for text before the first reply, and for messages where the conversation began with a
        plain text.
        """
        if not isinstance(new, str):
            if not self.messages and self._written is not None:
                raise ValueError(
                    "a conversation that continues a plain text has no messages: add text, or begin it with messages"
                )
            self.messages += new if isinstance(new, list) else [new]
            self._written = None
            return
        if not self.calls:
            raise ValueError("text is added behind a reply of the model: await reply(…) comes first")
        self._written = [*(self._written or []), *self._encoded(new)]
        if self.messages:
            last = self.messages[-1]
            self.messages[-1] = {**last, "content": (last.get("content") or "") + new}

    async def reply(self, *, max_tokens: int | None = None, stop: tuple[str, ...] = ()) -> Turn:
        """Samples the model's next reply and adds it to the conversation; by default it may fill the context.

        The reply ends with one of the texts in `stop` once it contains it; `turn.tool_calls` are the calls in it. Raises
        ContextFullError if the context ends before `max_tokens` are sampled, which ends the rollout as `token_limit` with all
        that was sampled; ServerError if no server answers within the time limit; ConfigError if tools are offered whose calls no
        parser reads.
        """
        if self._dialogue is None:
            call = await self._model.ask(self.messages, max_tokens=max_tokens or self._model.max_model_len, tools=self._tools)
            call.parent = self.calls[-1] if self.calls else None  # one sequence, also of a model whose tokens are not known
            self.calls.append(call)
            self.messages.append({"role": ASSISTANT, **call.message})
            return call.turn
        reader = await self._model.reader(reads_calls=bool(self._tools)) if self._parses else None
        prompt = await self._rendered(self._dialogue)
        room = max(1, self._model.max_model_len - len(prompt.ids))
        limit = room if max_tokens is None else min(max_tokens, room)
        call = await self._model.call(prompt, max_tokens=limit, stop=stop)
        turn = call.turn
        message = await aside(len(turn.output_ids), self._read, reader, prompt, turn)
        self.calls.append(call)
        if not self.messages:  # a plain text, which the next reply continues as well
            call.message, self._written = message, []
        else:
            self._dialogue.answered(call, prompt, message, ended=turn.finish_reason == "stop")
            if prompt.begun is None:
                self.messages.append(message)
            else:
                content = (prompt.begun.get("content") or "") + (message.get("content") or "")
                self.messages[-1] = {**prompt.begun, **message, "content": content}
            self._written = None
        if max_tokens is not None and room < max_tokens and turn.finish_reason == "length":
            end = f"the context of {self._model.name} ({self._model.max_model_len} tokens) ended a reply after {room} tokens"
            raise ContextFullError(f"{end} of max_tokens={max_tokens}", self._model.name)
        return replace(turn, prompt_ids=prompt.ids, message=message)

    @property
    def num_tokens(self) -> int:
        """Length of the next reply's prompt."""
        if self._written is not None:
            return len(self._onward().ids)
        assert self._dialogue is not None, f"the tokens of {self._model.name} are not known"
        return len(self._dialogue.prompt(self.messages, self._tools, count=True).ids)

    @property
    def room(self) -> int:
        """The number of tokens that the model's context leaves for the next reply."""
        return self._model.max_model_len - self.num_tokens

    def samples(self, template: Sample, /, **metadata: Any) -> list[Sample]:
        """The trainable sequences of this conversation alone; those of the whole rollout are `context.samples`."""
        return self._model.trajectory.samples(template, metadata, calls=self.calls)

    async def _rendered(self, dialogue: Dialogue) -> CallPrompt:
        """The prompt of the next reply; counts where the template has rewritten earlier messages."""
        if self._written is not None:
            return self._onward()
        num_kept = dialogue.statistics.kept.total()
        make = partial(dialogue.prompt, self.messages, self._tools)
        prompt = make() if dialogue.num_new_characters(self.messages, self._tools) <= SHORT_PROMPT else await in_thread(make)
        if prompt.cause and prompt.parent is None:
            self._model.trace.count(FORKS)
        if dialogue.statistics.kept.total() > num_kept:
            self._model.trace.count(KEPT)
        return replace(prompt, kind="")  # the agent knows what this conversation is; only those of clients are told apart

    def _onward(self) -> CallPrompt:
        """The prompt of a reply that goes on behind text which the environment has written."""
        before = self.calls[-1] if self.calls else None
        written = self._written or []
        if before is None or not self.messages or self._dialogue is None:
            return CallPrompt.behind(before, written, goes_on=before is not None)
        return self._dialogue.onward(before, written, list(self.messages), self._tools)

    def _read(self, reader: ReplyReader | None, prompt: CallPrompt, turn: Turn) -> Message:
        """The message of a reply: as the parsers read it, or all of its text but the token that ends it."""
        ids = turn.output_ids
        if reader is not None:
            reading = reader.begin(ChatRequest(messages=self.messages, tools=self._tools or []), prompt.ids)
            reading.whole(ids, stopped=turn.finish_reason == "stop")
            return reading.message
        tokenizer = self._model.tokenizer
        own = ids[:-1] if ids and ids[-1] in control_tokens(tokenizer).special_ids else ids
        return {"role": ASSISTANT, "content": tokenizer.decode(own, skip_special_tokens=False)}

    def _encoded(self, text: str) -> list[int]:
        if not self._model.shows_tokens:
            raise BadRequestError(f"{self._model.name} is an endpoint with a chat API: it takes messages, and continues no text")
        return control_tokens(self._model.tokenizer).encode_plain(text)
