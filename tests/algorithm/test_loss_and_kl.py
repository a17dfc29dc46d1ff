"""Losses and KL estimators against their closed forms, in float64."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from vime.algorithm.kl import kl_estimate, unbiased
from vime.algorithm.loss import entropy_of_logits, policy_loss
from vime.config import AlgorithmConfig, KLEstimator, RatioLevel, Surrogate


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def one(length: int) -> torch.Tensor:
    """All tokens belong to one sequence."""
    return torch.zeros(length, dtype=torch.int64)


def close(actual: torch.Tensor, *expected: float) -> None:
    torch.testing.assert_close(actual, tensor(*expected), rtol=0, atol=1e-6)


def test_policy_loss_is_minus_the_ratio_times_the_advantage_inside_the_clip_range() -> None:
    loss, metrics = policy_loss(
        AlgorithmConfig(), tensor(-1.0, -0.9), tensor(-1.1, -0.8), tensor(2.0, -0.5), torch.ones(2), one(2)
    )
    close(loss, -2.0 * math.exp(0.1), 0.5 * math.exp(-0.1))
    assert metrics["train/clip_fraction"] == 0
    assert math.isclose(float(metrics["train/ratio_max"]), math.exp(0.1), abs_tol=1e-6)


def test_policy_loss_clips_only_where_the_objective_would_grow() -> None:
    config = AlgorithmConfig(clip_low=0.2, clip_high=0.3)
    logprobs, old = tensor(0.0, 0.0, -1.0, -1.0), tensor(-1.0, -1.0, 0.0, 0.0)
    loss, metrics = policy_loss(config, logprobs, old, tensor(1.0, -1.0, 1.0, -1.0), torch.ones(4), one(4))
    close(loss, -1.3, math.e, -math.exp(-1), 0.8)
    assert metrics["train/clip_fraction"] == 2


def test_a_clipped_token_has_no_gradient() -> None:
    logprobs = tensor(0.0, -0.05).requires_grad_()
    loss, _ = policy_loss(AlgorithmConfig(), logprobs, tensor(-1.0, -0.05), tensor(1.0, 3.0), torch.ones(2), one(2))
    loss.sum().backward()
    assert logprobs.grad is not None
    close(logprobs.grad, 0.0, -3.0)


def test_masked_tokens_count_for_nothing_even_if_they_are_nan() -> None:
    logprobs = tensor(-1.0, float("nan")).requires_grad_()
    mask, old = torch.tensor([1, 0]), tensor(-1.0, float("nan"))
    loss, metrics = policy_loss(AlgorithmConfig(), logprobs, old, tensor(1.0, 9.0), mask, one(2))
    close(loss.detach(), -1.0, 0.0)
    assert metrics["train/ratio_max"] == 1


def test_kl_estimators_equal_their_formulas() -> None:
    logprobs, reference = tensor(-1.0, -2.0), tensor(-1.5, -1.0)
    x = [0.5, -1.0]
    close(kl_estimate(KLEstimator.k1, logprobs, reference), *x)
    close(kl_estimate(KLEstimator.k2, logprobs, reference), *[value * value / 2 for value in x])
    close(kl_estimate(KLEstimator.k3, logprobs, reference), *[math.exp(-value) - 1 + value for value in x])
    close(kl_estimate(KLEstimator.low_var_kl, logprobs, reference), *[math.exp(-value) - 1 + value for value in x])


def test_low_var_kl_is_bounded_and_k3_stays_finite() -> None:
    far = kl_estimate(KLEstimator.low_var_kl, tensor(-50.0), tensor(0.0))
    close(far, 10.0)
    assert torch.isfinite(kl_estimate(KLEstimator.k3, tensor(-2000.0), tensor(0.0))).all()


def test_k1_and_k3_average_to_the_true_kl_over_the_vocabulary() -> None:
    generator = torch.Generator().manual_seed(0)
    policy = torch.randn(7, generator=generator, dtype=torch.float64).log_softmax(0)
    reference = torch.randn(7, generator=generator, dtype=torch.float64).log_softmax(0)
    true_kl = (policy.exp() * (policy - reference)).sum()
    for estimator in (KLEstimator.k1, KLEstimator.k3):
        torch.testing.assert_close((policy.exp() * kl_estimate(estimator, policy, reference)).sum(), true_kl)


def test_entropy_of_a_uniform_distribution_is_the_log_of_its_size() -> None:
    close(entropy_of_logits(torch.zeros(1, 8, dtype=torch.float64)), math.log(8))


def plain_loss(config: AlgorithmConfig, batch: Any, logprobs: list[Any]) -> dict[int, Any]:
    """The loss of every unmasked token, one sequence and one token after the other; `logprobs` are leaves."""
    losses = {}
    for row in batch.rows:
        old, advantages = ([float(values[i]) for i in row] for values in (batch.old, batch.advantages))
        ratios = [(logprobs[i] - o).exp() for i, o in zip(row, old)]
        if config.ratio is RatioLevel.sequence and row:
            geometric = math.prod(ratios[1:], start=ratios[0]) ** (1 / len(row))
            ratios = [geometric] * len(row)
        for i, ratio, advantage in zip(row, ratios, advantages):
            value, low, high = float(ratio.detach()), 1 - config.clip_low, 1 + config.clip_high
            bounded = min(max(value, low), high)
            if config.surrogate is Surrogate.cispo:
                losses[i] = -bounded * advantage * logprobs[i]
                continue
            loss = -ratio * advantage
            if -bounded * advantage > float(loss.detach()):
                loss = logprobs[i] * 0 - bounded * advantage
            if config.dual_clip and advantage < 0 and float(loss.detach()) > -config.dual_clip * advantage:
                loss = logprobs[i] * 0 - config.dual_clip * advantage
            losses[i] = loss
    return losses


CLIPPED = (Surrogate.clipped, Surrogate.cispo)


@pytest.mark.parametrize(("ratio", "surrogate", "dual_clip"), itertools.product(RatioLevel, CLIPPED, [None, 1.3]))
def test_every_policy_loss_equals_a_plain_loop_with_its_gradient(
    ragged: Callable[..., Any], ratio: RatioLevel, surrogate: Surrogate, dual_clip: float | None
) -> None:
    config = AlgorithmConfig(ratio=ratio, surrogate=surrogate, dual_clip=dual_clip, clip_low=0.1, clip_high=0.15)
    num_clipped = 0
    for seed in range(20):
        batch = ragged(seed, spread=0.5)
        found, metrics = policy_loss(config, batch.logprobs, batch.old, batch.advantages, batch.mask, batch.sequences)
        found.sum().backward()
        leaves = [value.detach().clone().requires_grad_() for value in batch.logprobs]
        expected = plain_loss(config, batch, leaves)
        sum(expected.values(), torch.zeros((), dtype=torch.float64)).backward()
        close(found.detach(), *[float(expected[i].detach()) if i in expected else 0.0 for i in range(len(leaves))])
        close(batch.logprobs.grad, *[0.0 if x.grad is None else float(x.grad) for x in leaves])
        num_clipped += int(metrics["train/clip_fraction"]) + int(metrics.get("train/dual_clip_fraction", 0))
    assert num_clipped > 10


def test_an_all_masked_and_an_empty_batch_have_no_loss_and_no_gradient() -> None:
    for ratio, surrogate, number in itertools.product(RatioLevel, Surrogate, (3, 0)):
        config = AlgorithmConfig(ratio=ratio, surrogate=surrogate, dual_clip=2.0)
        logprobs = torch.full((number,), float("nan"), dtype=torch.float64, requires_grad=True)
        nothing = torch.full((number,), float("nan"), dtype=torch.float64)
        loss, metrics = policy_loss(config, logprobs, nothing, nothing, torch.zeros(number), one(number))
        loss.sum().backward()
        assert logprobs.grad is not None
        close(loss.detach(), *[0.0] * number)
        close(logprobs.grad, *[0.0] * number)
        assert all(float(value) == 0.0 for value in metrics.values()) or metrics["train/ratio_max"] == 0


def test_the_unbiased_kl_has_the_gradient_of_the_true_one_and_the_plain_k1_has_none() -> None:
    generator = torch.Generator().manual_seed(0)
    logits, old, reference = (torch.randn(7, generator=generator, dtype=torch.float64) for _ in range(3))
    old, reference = old.log_softmax(0), reference.log_softmax(0)

    def gradient(kl: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        variable = logits.clone().requires_grad_()
        return torch.autograd.grad(kl(variable.log_softmax(0)), variable)[0]

    true = gradient(lambda policy: (policy.exp() * (policy - reference)).sum())
    for estimator in (KLEstimator.k1, KLEstimator.k3):
        found = gradient(lambda policy, e=estimator: (old.exp() * unbiased(e, policy, reference, old)).sum())
        torch.testing.assert_close(found, true)
    weights = logits.log_softmax(0).exp()
    close(gradient(lambda policy: (weights * kl_estimate(KLEstimator.k1, policy, reference)).sum()), *[0.0] * 7)
    torch.testing.assert_close(gradient(lambda policy: (weights * kl_estimate(KLEstimator.k2, policy, reference)).sum()), true)


@pytest.mark.parametrize("estimator", [KLEstimator.k2, KLEstimator.k3, KLEstimator.low_var_kl])
def test_no_kl_estimate_pushes_the_policy_away_from_the_reference(estimator: KLEstimator) -> None:
    differences = tensor(-1e4, -100, -30, -20.1, -20, -19.9, -11, -10, -5, -2.5, -0.1, 0.1, 2.5, 10, 11, 19.9, 20.1, 30, 1e4)
    logprobs = differences.clone().requires_grad_()
    gradient = torch.autograd.grad(kl_estimate(estimator, logprobs, torch.zeros_like(logprobs)).sum(), logprobs)[0]
    assert torch.isfinite(gradient).all()
    assert (gradient * differences >= 0).all()  # descent never makes the difference larger
    assert (gradient[differences.abs() < 2] != 0).all()


@pytest.mark.parametrize("estimator", [KLEstimator.k1, KLEstimator.k3, KLEstimator.low_var_kl])  # k2 is no estimate of the KL
@pytest.mark.parametrize("ahead", [-50.0, -20.5, -3.0, 0.0, 3.0, 20.5, 50.0])
def test_no_unbiased_kl_estimate_pushes_the_policy_away_from_the_reference(estimator: KLEstimator, ahead: float) -> None:
    differences = tensor(-1e4, -100, -30, -20.1, -19.9, -11, -5, -2.6, 2.6, 11, 30, 1e4)
    logprobs = differences.clone().requires_grad_()
    product = unbiased(estimator, logprobs, torch.zeros_like(logprobs), differences - ahead)
    gradient = torch.autograd.grad(product.sum(), logprobs)[0]
    assert torch.isfinite(gradient).all()
    assert (gradient * differences >= 0).all()
    assert (gradient != 0).any() == (abs(ahead) < 20)


def test_the_bound_of_a_ratio_is_that_of_the_sequence_where_the_ratio_is() -> None:
    config = AlgorithmConfig(ratio=RatioLevel.sequence, clip_low=0.9, clip_high=9.0)
    logprobs = tensor(-40.0, 0.0, 0.0, 0.0).requires_grad_()  # geometric mean of the ratios: exp(-1), within the clip range
    loss, _ = policy_loss(config, logprobs, tensor(0.0, -12.0, -12.0, -12.0), tensor(1.0, 1.0, 1.0, 1.0), torch.ones(4), one(4))
    close(loss.detach(), *[-math.exp(-1)] * 4)
    close(torch.autograd.grad(loss.sum(), logprobs)[0], *[-math.exp(-1)] * 4)
