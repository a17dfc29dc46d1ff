"""Losses and KL estimators against their closed forms, in float64."""

import math

import torch

from vime.algorithm.kl import kl_estimate
from vime.algorithm.loss import entropy_of_logits, policy_loss, sft_loss
from vime.config import AlgorithmConfig, KLEstimator


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def close(actual: torch.Tensor, *expected: float) -> None:
    torch.testing.assert_close(actual, tensor(*expected), rtol=0, atol=1e-6)


def test_policy_loss_is_minus_the_ratio_times_the_advantage_inside_the_clip_range() -> None:
    loss, metrics = policy_loss(AlgorithmConfig(), tensor(-1.0, -0.9), tensor(-1.1, -0.8), tensor(2.0, -0.5), torch.ones(2))
    close(loss, -2.0 * math.exp(0.1), 0.5 * math.exp(-0.1))
    assert metrics["train/clip_fraction"] == 0
    assert math.isclose(float(metrics["train/ratio_max"]), math.exp(0.1), abs_tol=1e-6)


def test_policy_loss_clips_only_where_the_objective_would_grow() -> None:
    config = AlgorithmConfig(clip_low=0.2, clip_high=0.3)
    logprobs, old = tensor(0.0, 0.0, -1.0, -1.0), tensor(-1.0, -1.0, 0.0, 0.0)
    loss, metrics = policy_loss(config, logprobs, old, tensor(1.0, -1.0, 1.0, -1.0), torch.ones(4))
    close(loss, -1.3, math.e, -math.exp(-1), 0.8)
    assert metrics["train/clip_fraction"] == 2


def test_a_clipped_token_has_no_gradient() -> None:
    logprobs = tensor(0.0, -0.05).requires_grad_()
    loss, _ = policy_loss(AlgorithmConfig(), logprobs, tensor(-1.0, -0.05), tensor(1.0, 3.0), torch.ones(2))
    loss.sum().backward()
    assert logprobs.grad is not None
    close(logprobs.grad, 0.0, -3.0)


def test_masked_tokens_count_for_nothing_even_if_they_are_nan() -> None:
    logprobs = tensor(-1.0, float("nan")).requires_grad_()
    loss, metrics = policy_loss(AlgorithmConfig(), logprobs, tensor(-1.0, float("nan")), tensor(1.0, 9.0), torch.tensor([1, 0]))
    close(loss.detach(), -1.0, 0.0)
    assert metrics["train/ratio_max"] == 1
    supervised, _ = sft_loss(tensor(-2.0, float("nan")), torch.tensor([1, 0]))
    close(supervised, 2.0, 0.0)


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
