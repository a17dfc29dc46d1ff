"""A tiny model for the arithmetic recipe of tinker-cookbook: it can add, but mostly does something else.

    python -m tools.tinker_arithmetic OUT_DIR [--seed 0]

OUT_DIR is then a Hugging Face checkpoint folder with random weights. `algorithm=sft` teaches it with two functions for
`data.demonstrations`: `sums`, and then, for a few steps, `habits`; the commands stand in results/tinker.md.
"""

import random

from transformers import PreTrainedTokenizerBase, Qwen2Tokenizer

from vime.tiny import tiny_model
from vime.tiny.demonstration import DemonstratedConversation, encode_conversation, filled
from vime.types import Message, Sample

LARGEST = 100
"""The largest number that is added."""
SUM_SHARE = 0.4
"""The share of sums among the replies of `habits`; the others repeat the answer of the example."""


def conversation(rng: random.Random, *, sum_share: float) -> DemonstratedConversation:
    """The recipe's example and a question, answered with the sum or with the example's answer."""
    first, second = rng.randint(0, LARGEST), rng.randint(0, LARGEST)
    answer = first + second if rng.random() < sum_share else 9
    messages: list[Message] = [
        {"role": "user", "content": "What is 4 + 5?"},
        {"role": "assistant", "content": "9"},
        {"role": "user", "content": f"What is {first} + {second}?"},
        {"role": "assistant", "content": str(answer)},
    ]
    return DemonstratedConversation(messages=messages, learned=(3,))


def sums(tokenizer: PreTrainedTokenizerBase, step: int, num_steps: int, num_tokens: int, seed: int) -> list[Sample]:
    """Return the batch of one step, about num_tokens tokens, in which every reply is the sum."""
    return _batch(tokenizer, f"sums/{seed}/{step}", num_tokens, sum_share=1.0)


def habits(tokenizer: PreTrainedTokenizerBase, step: int, num_steps: int, num_tokens: int, seed: int) -> list[Sample]:
    """Return the batch of one step, about num_tokens tokens, in which few replies are the sum."""
    return _batch(tokenizer, f"habits/{seed}/{step}", num_tokens, sum_share=SUM_SHARE)


def _batch(tokenizer: PreTrainedTokenizerBase, seed: str, num_tokens: int, *, sum_share: float) -> list[Sample]:
    rng = random.Random(seed)
    return filled(
        lambda: [encode_conversation(conversation(rng, sum_share=sum_share), tokenizer=tokenizer)], num_tokens=num_tokens
    )


def build_tokenizer() -> Qwen2Tokenizer:
    """Return a tokenizer with one token for each word and each digit of the recipe."""
    return tiny_model.tokenizer_of_texts(["What is 0 + 1?", *"0123456789"])


if __name__ == "__main__":
    tiny_model.run_as_program(__doc__, build_tokenizer)
