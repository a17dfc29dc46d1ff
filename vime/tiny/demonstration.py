"""Demonstrations for the supervised training of a method's tiny model: sequences with the tokens to learn."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from vime.types import Message, Sample


@dataclass(kw_only=True, slots=True)
class Demonstration:
    """One training sequence; loss_mask is 1 on the tokens to learn, for example on a reply and its end.

    Demonstration(token_ids=[1, 7, 9, 2, 4, 6, 2], loss_mask=[0, 0, 0, 0, 1, 1, 1])
    """

    token_ids: list[int]
    loss_mask: list[int]


@dataclass(kw_only=True, slots=True)
class Exchange:
    """A user message and the reply to demonstrate; Exchange(prompt="Your answer:", reply="Barton")."""

    prompt: str
    reply: str


@dataclass(kw_only=True, slots=True)
class DemonstratedConversation:
    """Messages with the replies to learn: all of the assistant's, or those at the positions `learned`.

    DemonstratedConversation(messages=[{"role": "user", "content": "2 + 2 ?"}, {"role": "assistant", "content": "4"}])
    """

    messages: list[Message]
    tools: list[dict[str, Any]] | None = None
    learned: tuple[int, ...] | None = None

    def learned_positions(self) -> list[int]:
        """Positions of the replies to learn."""
        own = [index for index, message in enumerate(self.messages) if message["role"] == "assistant"]
        return own if self.learned is None else [index for index in own if index in self.learned]


def encode_exchange(exchange: Exchange, *, tokenizer: PreTrainedTokenizerBase) -> Demonstration:
    """Return an exchange as tokens of the chat template; the reply and its end are learned."""
    messages = [{"role": "user", "content": exchange.prompt}, {"role": "assistant", "content": exchange.reply}]
    return encode_conversation(DemonstratedConversation(messages=messages), tokenizer=tokenizer)


def encode_conversation(conversation: DemonstratedConversation, *, tokenizer: PreTrainedTokenizerBase) -> Demonstration:
    """Return a conversation as tokens of the chat template, up to the last reply to learn."""
    messages, held = conversation.messages, ""
    token_ids: list[int] = []
    loss_mask: list[int] = []

    def add(text: str, learned: int) -> None:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        token_ids.extend(ids)
        loss_mask.extend([learned] * len(ids))

    for index in conversation.learned_positions():
        before = _rendered(conversation, tokenizer, stop=index, add_generation_prompt=True)
        after = _rendered(conversation, tokenizer, stop=index + 1)
        end = after.rindex(str(tokenizer.eos_token)) + len(str(tokenizer.eos_token))
        assert before.startswith(held) and after.startswith(before), f"the chat template rewrites message {index} of {messages}"
        add(before[len(held) :], 0)
        add(after[len(before) : end], 1)
        held = after[:end]
    return Demonstration(token_ids=token_ids, loss_mask=loss_mask)


def _rendered(
    conversation: DemonstratedConversation, tokenizer: PreTrainedTokenizerBase, *, stop: int, add_generation_prompt: bool = False
) -> str:
    render: Any = tokenizer.apply_chat_template  # its annotations are narrower than what it takes
    messages, tools = conversation.messages[:stop], conversation.tools
    return str(render(messages, tools=tools, tokenize=False, add_generation_prompt=add_generation_prompt))


def filled(make: Callable[[], list[Demonstration]], *, num_tokens: int) -> list[Sample]:
    """Return a batch of about num_tokens tokens from repeated calls of `make`; every learned token has the same weight."""
    batch: list[Demonstration] = []
    while sum(len(demonstration.token_ids) for demonstration in batch) < num_tokens:
        batch += make()
    return weighted(batch)


def weighted(batch: list[Demonstration]) -> list[Sample]:
    """Return a batch for the trainer, in which every learned token has the same weight."""
    weight = 1.0 / sum(sum(demonstration.loss_mask) for demonstration in batch)
    return [_sample(demonstration, weight=weight) for demonstration in batch]


def _sample(demonstration: Demonstration, *, weight: float) -> Sample:
    loss_mask = demonstration.loss_mask[demonstration.loss_mask.index(1) :]
    columns = {"logprob": 0.0, "advantage": 1.0, "weight": weight}
    return Sample(tokens=demonstration.token_ids, loss_mask=loss_mask, columns=columns)
