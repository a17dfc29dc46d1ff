"""Random ragged batches in float64, with masks, and with NaN wherever the mask is 0."""

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch


@dataclass(kw_only=True)
class Ragged:
    """Tokens of several sequences in one row; `rows` lists the positions of each sequence's unmasked tokens."""

    logprobs: torch.Tensor
    old: torch.Tensor
    engine: torch.Tensor
    reference: torch.Tensor
    advantages: torch.Tensor
    mask: torch.Tensor
    sequences: torch.Tensor
    rows: list[list[int]]


def make_ragged(seed: int, spread: float = 0.3) -> Ragged:
    """Five sequences of 1 to 9 tokens, one of them masked as a whole; `spread` is how far policies lie apart."""
    generator = random.Random(seed)
    lengths = [generator.randint(1, 9) for _ in range(5)]
    masked = generator.randrange(5)
    mask, advantages, sequences, rows = [], [], [], []
    for number, length in enumerate(lengths):
        advantage = generator.gauss(0, 1)
        kept = [number != masked and (position == 0 or generator.random() < 0.7) for position in range(length)]
        rows.append([len(mask) + position for position, keep in enumerate(kept) if keep])
        mask += kept
        advantages += [advantage if keep else float("nan") for keep in kept]
        sequences += [number] * length
    nan = [0.0 if keep else float("nan") for keep in mask]

    def policy(base: list[float]) -> torch.Tensor:
        return torch.tensor([b + generator.gauss(0, spread) + hole for b, hole in zip(base, nan)], dtype=torch.float64)

    base = [-generator.uniform(1.0, 4.0) for _ in mask]
    return Ragged(
        logprobs=policy(base).requires_grad_(),
        old=policy(base),
        engine=policy(base),
        reference=policy(base),
        advantages=torch.tensor(advantages, dtype=torch.float64),
        mask=torch.tensor(mask),
        sequences=torch.tensor(sequences),
        rows=rows,
    )


@pytest.fixture(scope="session")
def ragged() -> Callable[..., Ragged]:
    """`ragged(seed, spread=0.3)`."""
    return make_ragged
