"""KL in the reward and whitening, against plain loops in float64."""

import math
import statistics
from collections.abc import Callable
from typing import Any

import pytest
import torch

from vime.algorithm.sequence import sequence_mean, sequence_sum, sum_to_go
from vime.algorithm.token_advantage import mean_and_deviation, moments, whitened, with_kl_penalty
from vime.config import AlgorithmConfig, KLEstimator


def values_of(*lengths: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    sequences = torch.tensor([number for number, length in enumerate(lengths) for _ in range(length)])
    return torch.randn(sum(lengths), generator=generator, dtype=torch.float64), sequences


def test_sums_over_sequences_equal_plain_loops(ragged: Callable[..., Any]):
    for seed in range(20):
        batch = ragged(seed)
        sums, means = [0.0] * len(batch.mask), [0.0] * len(batch.mask)
        for number, row in enumerate(batch.rows):
            total = math.fsum(float(batch.old[i]) for i in row)
            for i in (batch.sequences == number).nonzero().flatten().tolist():
                sums[i], means[i] = total, total / max(len(row), 1)
        filled = torch.where(batch.mask, batch.old, 0.0)
        torch.testing.assert_close(sequence_sum(filled, batch.sequences).tolist(), sums, rtol=0, atol=1e-6)
        torch.testing.assert_close(sequence_mean(batch.old, batch.mask, batch.sequences).tolist(), means, rtol=0, atol=1e-6)


def test_a_token_pays_for_its_own_kl_and_all_that_follows_in_its_sequence():
    config = AlgorithmConfig(kl_coefficient=0.1, kl_estimator=KLEstimator.k1)
    old, sequences = values_of(3, 1, 4)
    reference, advantages = values_of(3, 1, 4, seed=1)[0], values_of(3, 1, 4, seed=2)[0]
    found = with_kl_penalty(config, advantages, old, reference, sequences).tolist()
    for start, end in ((0, 3), (3, 4), (4, 8)):
        for i in range(start, end):
            penalty = sum(0.1 * (float(old[j]) - float(reference[j])) for j in range(i, end))
            assert found[i] == pytest.approx(float(advantages[i]) - penalty, abs=1e-6)
    assert sum_to_go(torch.zeros(0), torch.zeros(0).long()).tolist() == []


def test_whitening_over_any_sharding_equals_that_of_the_whole():
    values, _ = values_of(17)
    shards = [values[:5], values[5:5], values[5:]]
    parts = [moments([shard]) for shard in shards]
    total = {name: sum(part[name] for part in parts) for name in parts[0]}
    mean, deviation = mean_and_deviation(total)
    assert mean == pytest.approx(statistics.fmean(values.tolist()), abs=1e-9)
    assert deviation == pytest.approx(statistics.pstdev(values.tolist()), abs=1e-9)
    found = torch.cat([whitened(shard, mean=mean, deviation=deviation) for shard in shards])
    expected = [(value - mean) / deviation for value in values.tolist()]
    torch.testing.assert_close(found.tolist(), expected, rtol=0, atol=1e-6)


def test_a_batch_without_variance_and_an_empty_one_whiten_to_zero():
    equal = torch.full((4,), 0.1, dtype=torch.float64)
    assert whitened(equal, **dict(zip(("mean", "deviation"), mean_and_deviation(moments([equal]))))).tolist() == [0.0] * 4
    assert mean_and_deviation(moments([torch.zeros(0)])) == (0.0, 0.0)
