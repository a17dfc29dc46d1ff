"""The function-calling mode: the orchestrator serves a customer with the domain's tools, and may let an expert take a turn.

The orchestrator sees `call_expert` in place of the transfer to human agents. An expert sees the original messages and tools, and
its reply is sent unchanged.
"""

import json
from collections.abc import Sequence
from typing import Any

from agentic.toolorchestra import prompts
from agentic.toolorchestra.environment.episode import End, Episode
from agentic.toolorchestra.experts import ExpertReply, Experts
from agentic.toolorchestra.offer import ALIAS, CALL_EXPERT, Offered, schema
from agentic.toolorchestra.orchestrator import Ending, Orchestrator, reader_of
from agentic.toolorchestra.tool_calls import ParsedReply, ToolCall, read_message
from vime.config import PromptStyle
from vime.rollout.context import Context
from vime.thinking import after_thinking
from vime.types import Message

TRANSFER = "transfer_to_human_agents"
UNREADABLE = "Error: the call could not be read; write one JSON object with name and arguments."
ENDINGS = {
    End.customer_stop: Ending.CUSTOMER_STOP,
    End.max_steps: Ending.MAX_STEPS,
    End.too_many_errors: Ending.TOO_MANY_ERRORS,
}


def orchestrators_tools(tools: Sequence[dict[str, Any]], offered: Offered) -> list[dict[str, Any]]:
    """The domain's tools without the transfer to human agents, and with `call_expert` if it is offered."""
    kept = [tool for tool in tools if tool["function"]["name"] != TRANSFER]
    return [*kept, schema(CALL_EXPERT, offered[CALL_EXPERT])] if CALL_EXPERT in offered else kept


def orchestrators_messages(
    messages: Sequence[Message], style: PromptStyle = PromptStyle.full, *, preference: str = ""
) -> list[Message]:
    """The opening messages as the orchestrator sees them: instructions, the policy without human agents, and a preference."""
    first, rest = messages[0], list(messages[1:])
    if first["role"] != "system":
        return [first, *rest]
    policy = prompts.without_transfer(first["content"])
    return [{"role": "system", "content": prompts.SETS[style].customer_service.format(policy=policy) + preference}, *rest]


class CustomerService:
    """One conversation; `num_transfers` counts transfers to human agents by the orchestrator or an expert."""

    def __init__(self, context: Context, episode: Episode, experts: Experts, parser: str) -> None:
        self.num_transfers = 0
        self.calls: dict[str, int] = {}
        """Number of calls of each domain tool by the orchestrator or an expert."""
        self._context, self._episode, self._experts, self._parser = context, episode, experts, parser
        self._original: list[Message] = []

    async def play(self, orchestrator: Orchestrator, opening: list[Message]) -> None:
        """Plays until the episode or the orchestrator ends; `orchestrator.ending` then says why."""
        self._original = list(opening)
        while orchestrator.ending is None:
            reply = await orchestrator.reply()
            if reply is None or orchestrator.ending is not None:
                return
            orchestrator.add(await self._turn(reply))
            if self._episode.end is not None:
                orchestrator.ending = ENDINGS[self._episode.end]

    async def _turn(self, reply: ParsedReply) -> list[Message]:
        """Handles a reply and returns the messages that follow it, as the orchestrator sees them."""
        if reply.calls and reply.calls[0].name == CALL_EXPERT and CALL_EXPERT in self._experts.offered:
            return await self._expert_turn(reply.calls[0])
        if reply.malformed:
            return [{"role": "tool", "name": "", "content": UNREADABLE}]
        return await self._send(prompts.tagged(reply.content, "message") or reply.content, reply.calls)

    async def _expert_turn(self, call: ToolCall) -> list[Message]:
        alias, offered = call.arguments.get(ALIAS[CALL_EXPERT]), self._experts.offered[CALL_EXPERT]
        if call.error or not isinstance(alias, str) or alias not in offered:
            error = call.error or f"there is no expert {alias}; there are: {', '.join(offered)}"
            return [_told(f"Error: {error}")]
        shows_tokens = self._context.models[offered[alias].model].shows_tokens
        messages = self._original if shows_tokens else for_api(self._original)
        found = await self._experts.ask(CALL_EXPERT, alias, messages, tools=self._episode.tools)
        if found.turn is None:
            return [_told(found.text)]
        reply = self._read(found, alias)
        content = after_thinking(reply.content).strip()
        new = await self._send(content, reply.calls)
        called = ", ".join(f"{done.name}({json.dumps(done.arguments)})" for done in reply.calls)
        return [_told(f"{alias} {f'called {called}' if called else f'wrote: {content}'}"), *new]

    def _read(self, found: ExpertReply, alias: str) -> ParsedReply:
        assert found.turn is not None
        model = self._context.models[self._experts.offered[CALL_EXPERT][alias].model]
        if not model.shows_tokens:
            return read_message(found.turn.message, self._episode.tools)
        return reader_of(model.tokenizer, self._parser).read(found.turn, self._episode.tools)

    async def _send(self, content: str, calls: list[ToolCall]) -> list[Message]:
        """Continues the episode with a message or with calls, and records both in the original conversation."""
        for call in calls:
            self.calls[call.name] = self.calls.get(call.name, 0) + 1
            self.num_transfers += call.name == TRANSFER
        said: Message = {"role": "assistant", "content": "" if calls else content}
        if calls:
            said["tool_calls"] = [
                {"type": "function", "function": {"name": call.name, "arguments": call.arguments}} for call in calls
            ]
        new = await self._episode.step(content, calls)
        self._original += [said, *new]
        return new


def for_api(messages: Sequence[Message]) -> list[Message]:
    """The conversation in the form of OpenAI's API: arguments as JSON texts, and ids that link calls with their results."""
    found: list[Message] = []
    waiting: list[str] = []
    for message in messages:
        if message.get("tool_calls"):
            calls = []
            for call in message["tool_calls"]:
                number, function = f"call_{len(found)}_{len(calls)}", call["function"]
                words = {"name": function["name"], "arguments": json.dumps(function["arguments"])}
                calls.append({"id": number, "type": "function", "function": words})
            waiting = [call["id"] for call in calls]
            found.append({**message, "tool_calls": calls})
        elif message["role"] == "tool":
            number = waiting.pop(0) if waiting else "call_unknown"
            found.append({"role": "tool", "tool_call_id": number, "content": message["content"]})
        else:
            found.append(message)
    return found


def _told(text: str) -> Message:
    return {"role": "tool", "name": CALL_EXPERT, "content": text}
