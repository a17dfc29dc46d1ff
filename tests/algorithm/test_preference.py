"""Direct preference optimization: the loss, and the gradient of a weighted cross-entropy, are those of the formula."""

import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import logsigmoid

from vime.algorithm.algorithm import Tokens
from vime.algorithm.choice import algorithm_of, second_weights
from vime.algorithm.preference import CHOSEN, REJECTED, Preference
from vime.preflight.compose import compose_run
from vime.types import Sample

BETA = 0.3
NUM_PAIRS = 5


def made(seed: int) -> tuple[Preference, list[Sample], list[torch.Tensor]]:
    """Sequences of pairs in any order, with logprobs of the policy (leaves) and of the reference."""
    run = compose_run(["algorithm=dpo", f"algorithm.options.beta={BETA}", "data.train.path=x.jsonl", "mode=plan"]).config
    generator, algorithm = random.Random(seed), algorithm_of(run)
    assert isinstance(algorithm, Preference)
    samples, policy = [], []
    for pair in range(NUM_PAIRS):
        for order, seat in enumerate((CHOSEN, REJECTED)):
            logprobs = [-generator.uniform(0.5, 4.0) for _ in range(generator.randint(1, 7))]
            policy.append(torch.tensor(logprobs, dtype=torch.float64, requires_grad=True))
            reference = np.array([value + generator.gauss(0, 0.7) for value in logprobs])
            columns = {"old": np.array(logprobs), "reference": reference, "weight": 1.0 / NUM_PAIRS}
            samples.append(Sample(seat=seat, pair=pair, rollout_id=pair, order=order, columns=columns))
    places = generator.sample(range(len(samples)), len(samples))
    return algorithm, [samples[place] for place in places], [policy[place] for place in places]


def as_in_the_paper(samples: list[Sample], policy: list[torch.Tensor]) -> torch.Tensor:
    """Equation 7, which is TRL's `loss_type=sigmoid`."""

    def ratio(pair: int, seat: str) -> torch.Tensor:
        (place,) = [n for n, sample in enumerate(samples) if (sample.pair, sample.seat) == (pair, seat)]
        return policy[place].sum() - samples[place].columns["reference"].sum()

    margins = [BETA * (ratio(pair, CHOSEN) - ratio(pair, REJECTED)) for pair in range(NUM_PAIRS)]
    return -torch.stack([logsigmoid(margin) for margin in margins]).mean()


@pytest.mark.parametrize("seed", range(5))
def test_loss_and_gradient_are_those_of_the_formula(seed: int):
    algorithm, samples, policy = made(seed)
    wanted = as_in_the_paper(samples, policy)
    gradients = torch.autograd.grad(wanted, policy)
    columns = algorithm.advantages([], samples)
    given = columns.values["advantage"]
    assert columns.metrics["train/preference_loss"] == pytest.approx(wanted.item(), rel=1e-12)
    for sample, logprobs, gradient in zip(samples, policy, gradients):
        advantage = torch.full_like(logprobs, given[sample.rollout_id, sample.order])
        tokens = Tokens(
            logprobs=logprobs, entropy=advantage, sequences=advantage, staleness=advantage, columns={"advantage": advantage}
        )
        loss = (sample.columns["weight"] * algorithm.loss(tokens).terms["policy"]).sum()
        torch.testing.assert_close(torch.autograd.grad(loss, logprobs)[0], gradient, rtol=1e-10, atol=0)


def test_margins_far_apart_are_finite():
    algorithm, samples, _ = made(0)
    for sample in samples:
        sample.columns = {**sample.columns, "old": np.array([3000.0 if sample.seat == REJECTED else -3000.0])}
    columns = algorithm.advantages([], samples)
    assert math.isfinite(columns.metrics["train/preference_loss"]) and columns.metrics["train/preference_accuracy"] == 0
    assert max(map(abs, columns.values["advantage"].values())) == pytest.approx(BETA)


def test_the_reference_is_kept_beside_the_weights():
    run: Any = made(0)[0].run
    assert [need.weights.value for need in second_weights(run)] == ["first"]
