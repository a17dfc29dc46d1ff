"""Calls of experts, each with a time limit and booked with its tokens, dollars and milliseconds.

If an expert fails, the orchestrator gets a message and the rollout goes on. After `limits.expert_errors` failures in a row the
expert's model counts as unavailable and is not asked again in this rollout.
"""

from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any

from agentic.toolorchestra.config import ToolOrchestraConfig
from agentic.toolorchestra.prompts import UNAVAILABLE
from agentic.toolorchestra.settings import ExpertConfig, LatencySource
from vime.chat.served_model import ServedModel
from vime.rollout.context import Context
from vime.rollout.tool import ToolOutcome, run_tool
from vime.types import Message, Turn

CHARACTERS_PER_TOKEN = 3
"""Estimate for endpoints that return no token ids, as in slime-agentic."""
NUM_CUTS = 8
CUT = "\n[…]\n"


class CallEnd(str, Enum):
    """Ends of a call."""

    ANSWERED = "answered"
    EMPTY = "empty"
    """The reply had neither words nor tool calls."""
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    UNAVAILABLE = "unavailable"
    """The expert was not asked, because it failed too often before."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertCall:
    """One call of an expert.

    Example: `ExpertCall(tool="answer", alias="answer-1", model="base", end=CallEnd.ANSWERED, input_tokens=812, output_tokens=95,
    dollars=0.0006, milliseconds=2140.0, table_milliseconds=96000.0)`. A failed call has no tokens, because no server counted
    them, and the stated time of its expert, because the time it took depends on the server and not on the agent.
    """

    tool: str
    alias: str
    model: str
    end: CallEnd
    input_tokens: int = 0
    output_tokens: int = 0
    dollars: float = 0.0
    milliseconds: float = 0.0
    table_milliseconds: float = 0.0
    """The stated latency of the expert; 0 if the expert was not asked."""
    error: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertReply:
    """An expert's reply; if the expert did not answer, `turn` is None and `text` tells the orchestrator why."""

    text: str
    turn: Turn | None = None


@dataclass(kw_only=True, slots=True)
class Account:
    """Everything that one rollout used: calls, tokens, dollars and time."""

    calls: list[ExpertCall] = field(default_factory=list)
    orchestrator_input_tokens: int = 0
    orchestrator_output_tokens: int = 0
    orchestrator_dollars: float = 0.0
    orchestrator_milliseconds: float = 0.0

    @property
    def dollars(self) -> float:
        """Cost of orchestrator and experts together."""
        return self.orchestrator_dollars + sum(call.dollars for call in self.calls)

    def seconds(self, source: LatencySource) -> float:
        """Measured time of all calls of orchestrator and experts, or the stated latency of the experts' calls alone."""
        if source is LatencySource.table:
            return sum(call.table_milliseconds for call in self.calls) / 1000
        return (self.orchestrator_milliseconds + sum(call.milliseconds for call in self.calls)) / 1000

    def add_turn(self, turn: Turn, method: ToolOrchestraConfig) -> None:
        """Books a reply of the orchestrator."""
        read, written = tokens_of(turn)
        self.orchestrator_input_tokens += read
        self.orchestrator_output_tokens += written
        self.orchestrator_milliseconds += turn.seconds * 1000
        self.orchestrator_dollars += (
            read * method.orchestrator_dollars_per_million_input_tokens
            + written * method.orchestrator_dollars_per_million_output_tokens
        ) / 1e6

    def metadata(self, source: LatencySource) -> dict[str, Any]:
        """The account as JSON data for a sample's metadata."""
        return {
            "expert_calls": [{**asdict(call), "end": call.end.value} for call in self.calls],
            "dollars": self.dollars,
            "seconds": self.seconds(source),
            "orchestrator_input_tokens": self.orchestrator_input_tokens,
            "orchestrator_output_tokens": self.orchestrator_output_tokens,
            "orchestrator_dollars": self.orchestrator_dollars,
        }


class Experts:
    """The experts of one rollout."""

    def __init__(self, context: Context, offered: dict[str, dict[str, ExpertConfig]], account: Account) -> None:
        """`offered` has the experts by tool and alias; their calls are booked in `account`."""
        self.offered = offered
        self._context, self._account = context, account
        self._method = ToolOrchestraConfig.of(context.config)
        self._errors: Counter[str] = Counter()

    async def ask(
        self, tool: str, alias: str, messages: list[Message], *, tools: list[dict[str, Any]] | None = None
    ) -> ExpertReply:
        """The reply of the expert behind an alias, within the time left to the rollout.

        Raises KeyError for an alias that the tool does not offer.
        """
        expert, limits = self.offered[tool][alias], self._method.limits
        if self._errors[expert.model] >= limits.expert_errors:
            self._book(tool, alias, expert, CallEnd.UNAVAILABLE)
            return ExpertReply(text=UNAVAILABLE)
        seconds = max(1e-3, min(limits.expert_seconds, limits.seconds - self._context.clock.seconds))
        result = await run_tool(_limited(self._context, seconds), f"expert {alias}", self._sample, expert, messages, tools)
        turn = result.output if result.outcome is ToolOutcome.ANSWERED else None
        if turn is None:
            end = CallEnd.TIMED_OUT if result.outcome is ToolOutcome.TIMED_OUT else CallEnd.FAILED
        else:
            end = CallEnd.ANSWERED if turn.text.strip() or turn.message.get("tool_calls") else CallEnd.EMPTY
        self._errors[expert.model] = 0 if end is CallEnd.ANSWERED else self._errors[expert.model] + 1
        self._book(tool, alias, expert, end, turn=turn, error=result.error)
        if turn is not None and end is CallEnd.ANSWERED:
            return ExpertReply(text=turn.text, turn=turn)
        why = {CallEnd.EMPTY: "said nothing", CallEnd.TIMED_OUT: "took too long"}.get(end, "failed")
        return ExpertReply(text=f"[Expert {alias} {why}]")

    def _book(
        self,
        tool: str,
        alias: str,
        expert: ExpertConfig,
        end: CallEnd,
        *,
        turn: Turn | None = None,
        error: str = "",
    ) -> None:
        read, written = tokens_of(turn) if turn is not None else (0, 0)
        nominal = 0.0 if end is CallEnd.UNAVAILABLE else expert.seconds
        prices = expert.dollars_per_million_input_tokens, expert.dollars_per_million_output_tokens
        self._context.trace.count(f"expert_{end.value}")
        self._account.calls.append(
            ExpertCall(
                tool=tool,
                alias=alias,
                model=expert.model,
                end=end,
                input_tokens=read,
                output_tokens=written,
                dollars=(read * prices[0] + written * prices[1]) / 1e6,
                milliseconds=1000 * (nominal if turn is None else turn.seconds),
                table_milliseconds=1000 * nominal,
                error=error[:500],
            )
        )

    async def _sample(self, expert: ExpertConfig, messages: list[Message], tools: list[dict[str, Any]] | None) -> Turn:
        model, limit = self._context.models[expert.model], self._method.limits.expert_tokens
        if not model.shows_tokens:
            fitted = _fitted(model, messages, tools, reply_tokens=limit)
            return await model.chat(fitted, max_tokens=limit, tools=tools)
        token_ids = model.render(_fitted(model, messages, tools, reply_tokens=limit), tools=tools)
        room = min(limit, model.max_model_len - len(token_ids))
        if room < 1:
            raise ValueError(f"{len(token_ids)} tokens leave no room in a context of {model.max_model_len}")
        return await model.complete(token_ids, max_tokens=room)


def tokens_of(turn: Turn) -> tuple[int, int]:
    """Input and output tokens of a turn, as the server counted them."""
    return turn.usage if turn.usage is not None else (len(turn.prompt_ids), len(turn.output_ids))


def _fitted(model: ServedModel, messages: list[Message], tools: Any, *, reply_tokens: int) -> list[Message]:
    """The messages, shortened in the middle of the longest until they and a reply fit into the model's context."""
    allowed = model.max_model_len - min(reply_tokens, model.max_model_len // 4)
    for _ in range(NUM_CUTS):
        excess = _num_tokens(model, messages, tools) - allowed
        if excess <= 0:
            break
        longest = max(range(len(messages)), key=lambda index: len(messages[index].get("content") or ""))
        content = messages[longest].get("content") or ""
        kept = max(0, len(content) - len(CUT) - excess * (CHARACTERS_PER_TOKEN + 1)) // 2
        cut = {**messages[longest], "content": content[:kept] + CUT + content[len(content) - kept :]}
        messages = [*messages[:longest], cut, *messages[longest + 1 :]]
    return messages


def _num_tokens(model: ServedModel, messages: list[Message], tools: Any) -> int:
    if not model.shows_tokens:
        return sum(len(str(message.get("content") or "")) for message in messages) // CHARACTERS_PER_TOKEN
    return len(model.render(messages, tools=tools))


def _limited(context: Context, seconds: float) -> Context:
    """The context with the time limit of an expert's call and without retries, since failures are booked and reported."""
    rollout = replace(context.config.rollout, tool_timeout_seconds=seconds, max_tool_retries=0)
    return replace(context, config=replace(context.config, rollout=rollout))
