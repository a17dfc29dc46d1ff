"""Surrogates beyond PPO's and CISPO's against their papers' formulas, token by token, with gradients by autograd."""

import itertools
import math
import random
from typing import Any

import pytest
import torch
from torch.distributions import Bernoulli, kl_divergence

from vime.algorithm.loss import policy_loss
from vime.config import PROBABILITY_MASKS, AlgorithmConfig, Surrogate

DELTA = {Surrogate.ipo: 0.3, Surrogate.dppo_tv: 0.15, Surrogate.dppo_kl: 0.05}
CONFIGS = {
    Surrogate.sapo: AlgorithmConfig(surrogate=Surrogate.sapo, tau_positive=1.0, tau_negative=1.7),
    Surrogate.gmpo: AlgorithmConfig(surrogate=Surrogate.gmpo, clip_low=0.3, clip_high=0.5),
    **{surrogate: AlgorithmConfig(surrogate=surrogate, max_divergence=delta) for surrogate, delta in DELTA.items()},
}
LENGTHS = (3, 1, 7, 5)


def batch(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logprobs of the trainer (leaves) and of the sampler, advantages and sequences; a sequence has one advantage."""
    generator = random.Random(seed)
    old = [math.log(generator.uniform(0.02, 0.98)) for _ in range(sum(LENGTHS))]
    logprobs = [min(value + generator.gauss(0, 0.6), -1e-3) for value in old]
    advantages = [value for length in LENGTHS for value in [generator.gauss(0, 1)] * length]
    sequences = [number for number, length in enumerate(LENGTHS) for _ in range(length)]
    doubles = (torch.tensor(values, dtype=torch.float64) for values in (logprobs, old, advantages))
    trainer, sampler, advantage = doubles
    return trainer.requires_grad_(), sampler, advantage, torch.tensor(sequences)


def papers_token_loss(config: AlgorithmConfig, logprob: torch.Tensor, old: torch.Tensor, advantage: float) -> torch.Tensor:
    """SAPO's, IPO's and DPPO's loss of one token."""
    ratio = (logprob - old).exp()
    if config.surrogate is Surrogate.sapo:
        tau = config.tau_positive if advantage > 0 else config.tau_negative
        return -4 / tau / (1 + torch.exp(-tau * (ratio - 1))) * advantage
    p, q = float(logprob.detach().exp()), float(old.exp())
    if config.surrogate is Surrogate.dppo_kl:
        divergence = float(kl_divergence(Bernoulli(torch.tensor(q)), Bernoulli(torch.tensor(p))))
    else:
        divergence = abs(p - q)
    is_away = config.surrogate is Surrogate.ipo or (advantage > 0 and ratio > 1) or (advantage < 0 and ratio < 1)
    return (0.0 if is_away and divergence > config.max_divergence else 1.0) * -ratio * advantage


def papers_sequence_loss(config: AlgorithmConfig, logprobs: torch.Tensor, old: torch.Tensor, advantage: float) -> torch.Tensor:
    """GMPO's loss of one sequence."""
    ratios = (logprobs - old).exp()
    limit = ratios.clamp(1 - config.clip_low, 1 + config.clip_high)
    bounded = torch.minimum(ratios, limit) if advantage > 0 else torch.maximum(ratios, limit)
    return -advantage * bounded.prod() ** (1 / len(ratios))


@pytest.mark.parametrize("surrogate", CONFIGS)
def test_a_surrogate_equals_its_papers_formula_with_its_gradient(surrogate: Surrogate):
    config, num_clipped = CONFIGS[surrogate], 0
    for seed in range(20):
        logprobs, old, advantages, sequences = batch(seed)
        found, metrics = policy_loss(config, logprobs, old, advantages, torch.ones(len(old)), sequences)
        weights = torch.tensor([1 / length for length in LENGTHS], dtype=torch.float64)[sequences]
        (gradient,) = torch.autograd.grad((weights * found).sum(), logprobs)
        parts = []
        for new, before, advantage in zip(logprobs.split(LENGTHS), old.split(LENGTHS), advantages.split(LENGTHS)):
            if surrogate is Surrogate.gmpo:
                parts.append(papers_sequence_loss(config, new, before, float(advantage[0])))
            else:
                parts += [papers_token_loss(config, *token, float(advantage[0])) / len(new) for token in zip(new, before)]
        expected = torch.stack(parts).sum()
        torch.testing.assert_close((weights * found).sum(), expected)
        torch.testing.assert_close(gradient, torch.autograd.grad(expected, logprobs)[0])
        num_clipped += int(metrics.get("train/clip_fraction", 0))
        assert int(metrics.get("train/clip_fraction", 0)) == int((gradient == 0).sum())
    assert num_clipped > 10 or surrogate is Surrogate.sapo


@pytest.mark.parametrize("surrogate", CONFIGS)
def test_tokens_out_of_the_mask_have_no_influence_even_if_they_are_nan(surrogate: Surrogate):
    logprobs, old, advantages, sequences = batch(0)
    keep = torch.arange(len(old)) % 3 != 1
    hole = torch.where(keep, 0.0, float("nan"))
    masked = (logprobs.detach() + hole).requires_grad_()
    found, metrics = policy_loss(CONFIGS[surrogate], masked, old + hole, advantages + hole, keep, sequences)
    found.sum().backward()
    numbers = torch.unique(sequences[keep], return_inverse=True)[1]
    whole = torch.ones(int(keep.sum()))
    kept = logprobs.detach()[keep].requires_grad_()
    expected, others = policy_loss(CONFIGS[surrogate], kept, old[keep], advantages[keep], whole, numbers)
    expected.sum().backward()
    torch.testing.assert_close(found.detach()[keep], expected.detach())
    assert masked.grad is not None and kept.grad is not None
    torch.testing.assert_close(masked.grad[keep], kept.grad)
    assert (found[~keep] == 0).all() and (masked.grad[~keep] == 0).all()
    assert {name: float(value) for name, value in metrics.items()} == pytest.approx(
        {name: float(value) for name, value in others.items()}
    )


@pytest.mark.parametrize("surrogate", CONFIGS)
def test_extreme_ratios_have_finite_losses_and_gradients(surrogate: Surrogate):
    values = (-1e4, -87.0, -20.0, -1.0, -1e-7, 0.0, 1e-7)  # rounding may lift a logprob above 0
    logprobs, old = torch.tensor(list(itertools.product(values, values))).unbind(1)
    for advantage in (1.0, -1.0):
        leaves = logprobs.clone().requires_grad_()
        sequences = torch.arange(len(old)) // 7
        advantages = torch.full_like(old, advantage)
        found, metrics = policy_loss(CONFIGS[surrogate], leaves, old, advantages, torch.ones(len(old)), sequences)
        (gradient,) = torch.autograd.grad(found.sum(), leaves)
        assert torch.isfinite(found).all() and torch.isfinite(gradient).all()
        assert all(math.isfinite(float(value)) for value in metrics.values())


def gradients_at(surrogate: Surrogate, pairs: list[tuple[float, float, float]], **settings: Any) -> list[bool]:
    """True for each (trainer's probability, sampler's, advantage) that has a gradient."""
    new, old, advantages = (torch.tensor(values, dtype=torch.float64) for values in zip(*pairs))
    logprobs = new.log().requires_grad_()
    config = AlgorithmConfig(surrogate=surrogate, **settings)
    found, _ = policy_loss(config, logprobs, old.log(), advantages, torch.ones(len(pairs)), torch.arange(len(pairs)))
    return (torch.autograd.grad(found.sum(), logprobs)[0] != 0).tolist()


def test_ipo_masks_both_sides_and_dppo_only_a_move_with_the_advantage():
    moves = [(0.9, 0.5), (0.5, 0.9), (0.6, 0.5)]
    pairs = [(new, old, advantage) for new, old in moves for advantage in (1.0, -1.0)]
    assert gradients_at(Surrogate.ipo, pairs, max_divergence=0.3) == [False, False, False, False, True, True]
    for surrogate in (Surrogate.dppo_tv, Surrogate.dppo_kl):
        assert gradients_at(surrogate, pairs, max_divergence=0.1999) == [False, True, True, False, True, True]


def test_a_rare_token_may_become_a_hundred_times_as_likely_where_a_clip_range_would_stop_it():
    pairs = [(1e-3, 1e-5, 1.0)]
    for surrogate in PROBABILITY_MASKS:
        assert gradients_at(surrogate, pairs) == [True]
    assert gradients_at(Surrogate.clipped, pairs) == [False]


def test_a_probability_that_rounds_to_one_is_at_no_distance():
    old, logprobs = torch.tensor([-1.2e-7, 0.0]), torch.tensor([0.0, -1.2e-7])
    config = AlgorithmConfig(surrogate=Surrogate.dppo_kl, max_divergence=1e-4)
    for advantage in (1.0, -1.0):
        _, metrics = policy_loss(config, logprobs, old, torch.full((2,), advantage), torch.ones(2), torch.tensor([0, 0]))
        assert metrics["train/clip_fraction"] == 0


def test_the_gate_has_full_weight_where_the_policy_has_not_moved():
    logprobs = torch.tensor([-1.0, -2.0], dtype=torch.float64, requires_grad=True)
    old, advantages = torch.tensor([-1.0, -3.0], dtype=torch.float64), torch.tensor([2.0, -1.0], dtype=torch.float64)
    found, metrics = policy_loss(CONFIGS[Surrogate.sapo], logprobs, old, advantages, torch.ones(2), torch.tensor([0, 0]))
    (gradient,) = torch.autograd.grad(found.sum(), logprobs)
    weight = 1 / math.cosh(1.7 / 2 * (math.e - 1)) ** 2
    assert gradient.tolist() == pytest.approx([-2.0, math.e * weight])
    assert float(metrics["train/gate_weight_mean"]) == pytest.approx(1 + weight)


def test_gmpo_clips_each_ratio_and_not_their_mean():
    logprobs, old = torch.tensor([0.0, -1.0]), torch.tensor([-3.0, -1.0])
    loss, metrics = policy_loss(CONFIGS[Surrogate.gmpo], logprobs, old, torch.ones(2), torch.ones(2), torch.tensor([0, 0]))
    assert loss.tolist() == pytest.approx([-(1.5**0.5)] * 2)
    assert metrics["train/clip_fraction"] == 1 and float(metrics["train/ratio_max"]) == pytest.approx(math.exp(3))
