"""The agents of `tools/bench_rollout.py`: conversations of random tokens, the same for a rollout on either side."""

import random
from typing import Any

VOCABULARY = range(16, 1000)
PROMPT_TOKENS, NEW_TOKENS, OUTPUT_TOKENS = 256, 64, 48
NUM_TURNS = 4


def prompt_of(group: int) -> list[int]:
    """The prompt with which the rollouts of a group begin."""
    return random.Random(group).choices(VOCABULARY, k=PROMPT_TOKENS)


def message_of(rollout: int, turn: int) -> list[int]:
    """The environment's message before a turn after the first."""
    return random.Random(rollout * NUM_TURNS + turn).choices(VOCABULARY, k=NEW_TOKENS)


async def single(context: Any, sample: Any, sampling: Any) -> list[Any]:
    """One turn; the prompt is the rollout's own, so that no prefix is shared."""
    tokens = prompt_of(sample.rollout_id)
    await context.models["actor"].complete(tokens, max_tokens=OUTPUT_TOKENS)
    return context.samples(sample)


async def conversation(context: Any, sample: Any, sampling: Any) -> list[Any]:
    """Several turns, each with all before it as its prompt; a group begins alike."""
    tokens = prompt_of(sample.group_index)
    for number in range(NUM_TURNS):
        tokens = tokens + (message_of(sample.rollout_id, number) if number else [])
        turn = await context.models["actor"].complete(tokens, max_tokens=OUTPUT_TOKENS)
        tokens = tokens + turn.output_ids
    return context.samples(sample)


async def reward(context: Any, samples: list[Any]) -> float:
    """Any number."""
    return float(samples[0].rollout_id % 2)
