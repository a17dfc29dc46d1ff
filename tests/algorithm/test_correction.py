"""Importance weights against a plain loop, at every level and in every mode, and the named corrections by hand."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from vime.algorithm.correction import correction_weights
from vime.config import CorrectionConfig, CorrectionLevel, CorrectionMode

MODES, LEVELS = list(CorrectionMode), list(CorrectionLevel)


def plain_weights(config: CorrectionConfig, batch: Any) -> list[float]:
    """One token after the other."""
    weights = [0.0] * len(batch.mask)
    for row in filter(None, batch.rows):
        rho = [math.exp(float(batch.old[i]) - float(batch.engine[i])) for i in row]
        if config.veto and any(value < config.veto for value in rho):
            continue
        if config.level is CorrectionLevel.sequence:
            rho = [math.prod(rho)] * len(row)
        elif config.level is CorrectionLevel.geometric:
            rho = [math.prod(rho) ** (1 / len(row))] * len(row)
        for i, value in zip(row, rho):
            if config.mode is CorrectionMode.truncate:
                value = min(max(value, config.low), config.high)
            elif config.mode is CorrectionMode.mask:
                value = value if config.low <= value <= config.high else 0.0
            else:
                value = 1.0
            weights[i] = value
    return weights


@pytest.mark.parametrize(("mode", "level", "veto"), itertools.product(MODES, LEVELS, [0.0, 0.6]))
def test_weights_equal_a_plain_loop(ragged: Callable[..., Any], mode: CorrectionMode, level: CorrectionLevel, veto: float):
    config = CorrectionConfig(mode=mode, level=level, low=0.8, high=1.5, veto=veto)
    outside = 0.0
    for seed in range(20):
        batch = ragged(seed)
        found, metrics = correction_weights(config, batch.old, batch.engine, batch.mask, batch.sequences)
        expected = torch.tensor(plain_weights(config, batch), dtype=torch.float64)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
        assert float(metrics["train/correction_weight_mean"]) == pytest.approx(float(expected.sum()))
        outside += float(metrics.get("train/correction_outside_share", 0.0))
    assert (outside > 0) is (mode is not CorrectionMode.none)


def named(rho: list[float], **settings: Any) -> list[float]:
    """Weights of one sequence whose tokens have these ratios."""
    old = torch.tensor([math.log(value) for value in rho], dtype=torch.float64)
    ones, zeros = torch.ones(len(rho)), torch.zeros(len(rho), dtype=torch.int64)
    return correction_weights(CorrectionConfig(**settings), old, torch.zeros_like(old), ones, zeros)[0].tolist()


def test_the_named_corrections_do_what_their_papers_say():
    rho = [0.1, 0.9, 1.5, 6.0]
    tis = {"mode": CorrectionMode.truncate, "high": 2.0}
    ice_pop = {"mode": CorrectionMode.mask, "low": 0.5, "high": 5.0}
    masked_sequence = {"mode": CorrectionMode.mask, "level": CorrectionLevel.sequence, "high": 2.0}
    assert named(rho, **tis) == pytest.approx([0.1, 0.9, 1.5, 2.0])
    assert named(rho, **ice_pop) == pytest.approx([0.0, 0.9, 1.5, 0.0])
    assert named(rho, **masked_sequence) == pytest.approx([0.81] * 4)
    assert named([2.0, 1.5], **masked_sequence) == [0.0, 0.0]
    assert named([1.0, 1.0, 5e-5], veto=1e-4) == [0.0, 0.0, 0.0]
    assert named([1.0, 1.0, 5e-4], veto=1e-4) == [1.0, 1.0, 1.0]


def test_weights_carry_no_gradient_and_stay_finite():
    old = torch.tensor([0.0, 0.0], dtype=torch.float64, requires_grad=True)
    config = CorrectionConfig(mode=CorrectionMode.mask, level=CorrectionLevel.sequence, high=float("inf"))
    far = torch.tensor([-900.0, 0.0], dtype=torch.float64)
    found, _ = correction_weights(config, old, far, torch.ones(2), torch.zeros(2, dtype=torch.int64))
    assert not found.requires_grad and torch.isfinite(found).all()


@pytest.mark.parametrize("mode", MODES)
def test_an_all_masked_and_an_empty_batch_have_no_weight(mode: CorrectionMode):
    config = CorrectionConfig(mode=mode, level=CorrectionLevel.geometric, veto=0.1)
    for number in (3, 0):
        nothing = torch.full((number,), float("nan"), dtype=torch.float64)
        found, metrics = correction_weights(config, nothing, nothing, torch.zeros(number), torch.zeros(number).long())
        assert found.tolist() == [0.0] * number and float(metrics["train/correction_weight_mean"]) == 0.0
