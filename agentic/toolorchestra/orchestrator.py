"""The trained model's side of a rollout: its replies, its limits, and the sequences that are trained."""

from dataclasses import replace
from enum import Enum
from typing import Any

from agentic.toolorchestra.config import ToolOrchestraConfig
from agentic.toolorchestra.experts import Account
from agentic.toolorchestra.tool_calls import ParsedReply, ToolCallReader
from vime.rollout.context import Context
from vime.thinking import opens_thinking
from vime.types import Message, Sample, StopReason, Turn

DROPPED = "context_turns_dropped"
"""Metric: turns that were dropped from the orchestrator's context."""
TAIL_TOKENS = 8
"""Tokens at a prompt's end that show whether the prompt begins the thinking."""


class Ending(str, Enum):
    """The reason why a rollout ended."""

    ANSWERED = "answered"
    NO_CALL = "no_call"
    """Ending of a question-answering rollout whose reply called no tool, or whose call could not be read."""
    CUSTOMER_STOP = "customer_stop"
    MAX_STEPS = "max_steps"
    TOO_MANY_ERRORS = "too_many_errors"
    TURNS_USED_UP = "turns_used_up"
    TOKENS_USED_UP = "tokens_used_up"
    TIME_USED_UP = "time_used_up"


STOP_REASONS = {
    Ending.ANSWERED: StopReason.ANSWERED,
    Ending.NO_CALL: StopReason.MALFORMED,
    Ending.CUSTOMER_STOP: StopReason.ANSWERED,
    Ending.MAX_STEPS: StopReason.TURN_LIMIT,
    Ending.TOO_MANY_ERRORS: StopReason.MALFORMED,
    Ending.TURNS_USED_UP: StopReason.TURN_LIMIT,
    Ending.TOKENS_USED_UP: StopReason.TOKEN_LIMIT,
    Ending.TIME_USED_UP: StopReason.TIME_LIMIT,
}
_readers: dict[tuple[int, str], tuple[Any, ToolCallReader]] = {}


def reader_of(tokenizer: Any, parser: str) -> ToolCallReader:
    """The reader of a model's replies; a process makes only one."""
    key = (id(tokenizer), parser)
    if key not in _readers:
        _readers[key] = (tokenizer, ToolCallReader(tokenizer, parser=parser))
    return _readers[key][1]


class Orchestrator:
    """The trained model in one rollout."""

    def __init__(self, context: Context, messages: list[Message], tools: list[dict[str, Any]], account: Account) -> None:
        """Begins the conversation with `messages`, which are never dropped from the context."""
        self.tools = tools
        self.num_turns = self.num_invalid = 0
        self.ending: Ending | None = None
        self.text = ""
        """The text of all replies so far."""
        self._context, self._account = context, account
        self._method, self._model = ToolOrchestraConfig.of(context.config), context.models["actor"]
        self._conversation = self._model.conversation(messages, tools=tools, parses=False)
        self._num_kept = len(messages)

    async def reply(self) -> ParsedReply | None:
        """The next reply, or None with `ending` set if a limit is reached. Raises any error of the model."""
        limits = self._method.limits
        max_turns = limits.evaluation_turns if self._context.evaluation else limits.turns
        if self.num_turns >= max_turns:
            self.ending = Ending.TURNS_USED_UP
        elif self._context.clock.seconds >= limits.seconds:
            self.ending = Ending.TIME_USED_UP
        if self.ending is not None:
            return None
        room = self._make_room()
        if room < 1:
            self.ending = Ending.TOKENS_USED_UP
            return None
        turn = await self._conversation.reply(max_tokens=room)
        self._account.add_turn(turn, self._method)
        self.num_turns += 1
        reader = reader_of(self._model.tokenizer, self._method.parser)
        reply = reader.read(turn, self.tools, starts_thinking=self._starts_thinking(turn))
        self.text += reply.content
        self.num_invalid += reply.malformed + sum(bool(call.error) for call in reply.calls)
        if turn.finish_reason == "length" and not reply.calls:
            self.ending = Ending.TOKENS_USED_UP
        return reply

    def add(self, messages: list[Message]) -> None:
        """Adds messages of tools, experts or the customer, which are neither trained nor read as calls."""
        self._conversation.add(messages)

    def samples(self, template: Sample, metadata: dict[str, Any]) -> list[Sample]:
        """The sequences of the rollout; the last one carries `metadata` and the stop reason.

        If nothing was sampled, there is one sequence without response tokens.
        """
        assert self.ending is not None, "the rollout has not ended"
        if self.num_turns:
            found = self._context.samples(template)
        else:
            found = [replace(template, prompt=[], tokens=self._model.render(self._conversation.messages, tools=self.tools))]
        found[-1].metadata = metadata
        found[-1].stop_reason = STOP_REASONS[self.ending]
        return found

    def _make_room(self) -> int:
        """Number of tokens for the next reply; drops the oldest turns while the context leaves too few."""
        limits = self._method.limits
        total = min(limits.context_tokens, self._model.max_model_len)
        wanted = min(limits.turn_tokens, total // 4)
        while True:
            left = total - self._conversation.num_tokens
            if left >= wanted or not self._drop_oldest():
                return min(limits.turn_tokens, left)

    def _drop_oldest(self) -> bool:
        """Drops the oldest turn with the messages that followed it; False if only the newest turn is left."""
        messages = self._conversation.messages
        replies = [index for index, message in enumerate(messages) if message["role"] == "assistant" and index >= self._num_kept]
        if len(replies) < 2:
            return False
        del messages[replies[0] : replies[1]]
        self._context.trace.count(DROPPED)
        return True

    def _starts_thinking(self, turn: Turn) -> bool:
        return opens_thinking(self._model.tokenizer.decode(turn.prompt_ids[-TAIL_TOKENS:], skip_special_tokens=False))
