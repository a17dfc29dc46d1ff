"""A conversation with an episode without experts: reply, read the calls, let the episode answer, until it ends."""

from dataclasses import dataclass, field

from agentic.toolorchestra.environment.episode import End, Episode
from agentic.toolorchestra.tool_calls import ToolCallReader
from vime.chat.conversation import Conversation
from vime.chat.served_model import ServedModel


@dataclass(kw_only=True, slots=True)
class Conversed:
    """The result of a conversation; `calls` counts the tools by name, `num_invalid` the invalid calls."""

    conversation: Conversation
    num_turns: int = 0
    num_invalid: int = 0
    calls: dict[str, int] = field(default_factory=dict)
    end: End | None = None
    """None if the turns ran out."""


async def converse(
    model: ServedModel,
    episode: Episode,
    reader: ToolCallReader,
    *,
    max_turns: int,
    max_tokens: int,
    starts_thinking: bool = False,
) -> Conversed:
    """Plays an episode to its end or for `max_turns` replies of `max_tokens` tokens.

    Raises what the model raises: a lost server is not the orchestrator's fault.
    """
    conversation = Conversation(model, await episode.start(), tools=episode.tools)
    done = Conversed(conversation=conversation)
    while episode.end is None and done.num_turns < max_turns:
        turn = await conversation.reply(max_tokens=max_tokens)
        done.num_turns += 1
        reply = reader.read(turn, episode.tools, starts_thinking=starts_thinking)
        for call in reply.calls:
            done.calls[call.name] = done.calls.get(call.name, 0) + 1
            done.num_invalid += bool(call.error)
        done.num_invalid += reply.malformed
        conversation.add(await episode.step(reply.content, reply.calls))
    done.end = episode.end
    return done
