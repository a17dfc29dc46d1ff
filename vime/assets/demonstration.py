"""Demonstrations for the supervised training of a method's tiny model: sequences with the tokens to learn."""

from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from vime.types import TrainSample


@dataclass(kw_only=True, slots=True)
class Demonstration:
    """One training sequence; loss_mask is 1 on the tokens to learn, for example on a reply and its end.

    Demonstration(token_ids=[1, 7, 9, 2, 4, 6, 2], loss_mask=[0, 0, 0, 0, 1, 1, 1])
    """

    token_ids: list[int]
    loss_mask: list[int]


@dataclass(kw_only=True, slots=True)
class Turn:
    """A user message and the reply to demonstrate; Turn(prompt="Your answer:", reply="Barton")."""

    prompt: str
    reply: str


def encode_turn(turn: Turn, *, tokenizer: PreTrainedTokenizerBase) -> Demonstration:
    """Return a turn as tokens of the chat template, with the reply and its end to learn."""
    messages = [{"role": "user", "content": turn.prompt}]
    prompt_ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    reply_ids = tokenizer(turn.reply, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
    return Demonstration(token_ids=prompt_ids + reply_ids, loss_mask=[0] * len(prompt_ids) + [1] * len(reply_ids))


def weighted(batch: list[Demonstration]) -> list[TrainSample]:
    """Return a batch for the trainer, in which every learned token weighs the same."""
    weight = 1.0 / sum(sum(demonstration.loss_mask) for demonstration in batch)
    return [_train_sample(demonstration, weight=weight) for demonstration in batch]


def _train_sample(demonstration: Demonstration, *, weight: float) -> TrainSample:
    loss_mask = demonstration.loss_mask[demonstration.loss_mask.index(1) :]
    return TrainSample(
        tokens=demonstration.token_ids,
        loss_mask=loss_mask,
        rollout_log_probs=[0.0] * len(loss_mask),
        advantage=1.0,
        token_weight=weight,
    )
