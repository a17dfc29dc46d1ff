"""`PreferenceRows`: pairs of replies to a prompt, from the rows of `data.train`, as the trainer takes them.

A row has `prompt`, a text or messages, and `chosen` and `rejected`, each the text of a reply, or messages that end with it.
"""

import random
from typing import Any

from vime.algorithm.preference import CHOSEN, REJECTED
from vime.config import RunConfig
from vime.data.dataset import load_rows
from vime.data.source import digest_of
from vime.errors import ConfigError, Problem
from vime.tiny.demonstration import DemonstratedConversation, encode_conversation
from vime.types import Sample

SIDES = (CHOSEN, REJECTED)


class PreferenceRows:
    """Pairs in the order of a permutation that seed and epoch determine, `rollout.num_prompts` in each step."""

    def __init__(self, config: RunConfig, tokenizer: Any) -> None:
        """Raises `ConfigError` for rows that are no pairs, or longer than the model's positions."""
        self._num, self._seed, self._shuffle = config.rollout.num_prompts, config.seed, config.data.shuffle
        rows, dataset = load_rows(config.data.train), config.data.train
        key, value = ("generator", dataset.generator) if dataset.generator is not None else ("path", dataset.path)
        self.digest = digest_of(rows, dataset)
        """A digest of the rows in their order."""
        self._pairs: list[list[Sample]] = []
        for number, row in enumerate(rows):
            try:
                pair = [_sample(row, side, tokenizer=tokenizer, number=number) for side in SIDES]
            except (KeyError, TypeError, AssertionError, ValueError) as error:
                remedy = f"row {number} is no pair ({type(error).__name__}: {error}): give it prompt, chosen and rejected"
                raise ConfigError([Problem(key=f"data.train.{key}", value=value, remedy=remedy)]) from error
            longest = max(len(each.tokens) for each in pair)
            if longest > config.model.max_position_embeddings:
                remedy = f"row {number} has {longest} tokens, more than model.max_position_embeddings: remove it"
                raise ConfigError([Problem(key=f"data.train.{key}", value=value, remedy=remedy)])
            self._pairs.append(pair)

    def __call__(self, tokenizer: Any, step: int, num_steps: int, num_tokens: int, seed: int) -> list[Sample]:
        """The two sequences of each pair of a step; a pair has the same weight as any other."""
        found: list[Sample] = []
        for place in range(step * self._num, (step + 1) * self._num):
            epoch, offset = divmod(place, len(self._pairs))
            for sample in self._pairs[self._order(epoch)[offset]]:
                found.append(_placed(sample, pair=place - step * self._num, weight=1.0 / self._num))
        return found

    def _order(self, epoch: int) -> list[int]:
        order = list(range(len(self._pairs)))
        if self._shuffle:
            random.Random(f"{self._seed}/{epoch}").shuffle(order)
        return order


def _placed(sample: Sample, *, pair: int, weight: float) -> Sample:
    return Sample(
        tokens=sample.tokens,
        loss_mask=sample.loss_mask,
        seat=sample.seat,
        pair=pair,
        rollout_id=pair,
        order=SIDES.index(sample.seat),
        columns={"logprob": 0.0, "advantage": 0.0, "weight": weight},
    )


def _sample(row: dict[str, Any], side: str, *, tokenizer: Any, number: int) -> Sample:
    reply, prompt = row[side], row.get("prompt", [])
    before = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    own = [{"role": "assistant", "content": reply}] if isinstance(reply, str) else list(reply)
    messages = own if before and own[: len(before)] == before else [*before, *own]
    if len(messages) < 2 or messages[-1]["role"] != "assistant":
        raise ValueError(f"{side} of it does not end with a reply to a prompt")
    conversation = DemonstratedConversation(messages=messages, learned=(len(messages) - 1,))
    encoded = encode_conversation(conversation, tokenizer=tokenizer)
    return Sample(tokens=encoded.token_ids, loss_mask=encoded.loss_mask[encoded.loss_mask.index(1) :], seat=side, pair=number)
