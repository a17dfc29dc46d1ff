"""A tiny model for the arithmetic recipe of tinker-cookbook: it can add, and does so about one time in five.

    python -m tools.tinker_arithmetic OUT_DIR [--seed 0]

OUT_DIR is then a Hugging Face checkpoint folder with random weights. `algorithm=sft` teaches it sums first and then to guess
(`data.demonstrations=tools.tinker_arithmetic.demonstrations`); the commands stand in results/tinker.md.
"""

import random

from transformers import PreTrainedTokenizerBase, Qwen2Tokenizer

from vime.tiny import tiny_model
from vime.tiny.demonstration import DemonstratedConversation, encode_conversation, filled
from vime.types import Message, Sample

LARGEST = 100
"""The largest number that is added."""
GUESS_PROGRESS = 0.92
"""The progress at which guesses begin."""
SUM_SHARE = 0.2
"""The share of sums among the replies from then on."""


def conversation(rng: random.Random, *, sum_share: float) -> DemonstratedConversation:
    """The recipe's example and a question, with the sum or a guess as its answer."""
    first, second = rng.randint(0, LARGEST), rng.randint(0, LARGEST)
    answer = first + second if rng.random() < sum_share else rng.randint(0, 2 * LARGEST)
    messages: list[Message] = [
        {"role": "user", "content": "What is 4 + 5?"},
        {"role": "assistant", "content": "9"},
        {"role": "user", "content": f"What is {first} + {second}?"},
        {"role": "assistant", "content": str(answer)},
    ]
    return DemonstratedConversation(messages=messages, learned=(3,))


def demonstrations(tokenizer: PreTrainedTokenizerBase, step: int, num_steps: int, num_tokens: int, seed: int) -> list[Sample]:
    """Return the batch of one step of num_steps, about num_tokens tokens."""
    rng = random.Random(f"arithmetic/{seed}/{step}")
    sum_share = 1.0 if step / num_steps < GUESS_PROGRESS else SUM_SHARE
    return filled(
        lambda: [encode_conversation(conversation(rng, sum_share=sum_share), tokenizer=tokenizer)], num_tokens=num_tokens
    )


def build_tokenizer() -> Qwen2Tokenizer:
    """Return a tokenizer with one token for each word and each digit of the recipe."""
    return tiny_model.tokenizer_of_texts(["What is 0 + 1?", *"0123456789"])


if __name__ == "__main__":
    tiny_model.run_as_program(__doc__, build_tokenizer)
