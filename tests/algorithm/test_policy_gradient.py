"""KL in the reward, whitening and credit against plain loops, and what a user's advantages may be."""

import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vime.algorithm.batch import build_updates
from vime.algorithm.policy_gradient import PolicyGradient, mean_and_deviation, whitened
from vime.algorithm.sequence import sequence_mean, sequence_sum, sum_to_go
from vime.config import AlgorithmConfig, Credit, KLEstimator, KLPlace, MethodConfig, RunConfig
from vime.errors import HookError
from vime.types import Group, Prompt, Rollout, Sample, StopReason

PROMPT = Prompt(index=0, row=0, messages=[], ground_truth=[])


def sequence(length: int, seed: int, **columns: Any) -> Sample:
    draw = np.random.default_rng(seed)
    mask = [1, *draw.integers(0, 2, length - 1).tolist()]
    own = {"logprob": draw.normal(size=length), "reference": draw.normal(size=sum(mask)), "advantage": float(draw.normal())}
    return Sample(tokens=[0, *[1] * length], loss_mask=mask, columns=own | columns, rollout_id=seed)


def algorithm(**options: Any) -> PolicyGradient:
    return PolicyGradient(RunConfig(algorithm=AlgorithmConfig(**options)))


def test_a_token_pays_for_its_own_kl_and_all_that_follows_in_its_sequence():
    penalized = algorithm(kl_coefficient=0.1, kl_estimator=KLEstimator.k1, kl_place=KLPlace.reward)
    sequences = [sequence(length, seed) for seed, length in enumerate((3, 1, 6))]
    values, metrics = penalized.finished(sequences)
    assert metrics == {}
    for each, found in zip(sequences, values):
        old = each.columns["logprob"][each.trained]
        kl = [float(one - other) for one, other in zip(old, each.columns["reference"])]
        expected = [each.columns["advantage"] - 0.1 * sum(kl[start:]) for start in range(len(kl))]
        assert found.tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("penalty", [0.0, 0.5])
def test_whitening_gives_all_trained_tokens_mean_zero_and_deviation_one(penalty: float):
    white = algorithm(whitening=True, kl_coefficient=penalty, kl_estimator=KLEstimator.k1, kl_place=KLPlace.reward)
    sequences = [sequence(length, seed) for seed, length in enumerate((3, 1, 6, 9))]
    values, metrics = white.finished(sequences)
    tokens = [
        float(value) for each, found in zip(sequences, values) for value in np.broadcast_to(found, (each.num_trained_tokens,))
    ]
    assert statistics.fmean(tokens) == pytest.approx(0, abs=1e-6) and statistics.pstdev(tokens) == pytest.approx(1, abs=1e-5)
    assert metrics["train/advantage_deviation"] > 0
    assert all(isinstance(value, float) for value in values) == (penalty == 0.0), "a number for all tokens stays one"


def test_a_batch_without_variance_and_an_empty_one_whiten_to_zero():
    equal = np.full(4, 0.1, np.float32)
    mean, deviation = mean_and_deviation([equal], [4])
    assert whitened(equal, mean=mean, deviation=deviation).tolist() == [0.0] * 4
    assert mean_and_deviation([], []) == (0.0, 0.0)


def test_sums_over_sequences_equal_plain_loops():
    values, sequences = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0, 32.0]), torch.tensor([0, 0, 0, 1, 2, 2])
    assert sequence_sum(values, sequences).tolist() == [7.0, 7.0, 7.0, 8.0, 48.0, 48.0]
    assert sequence_mean(values, torch.tensor([1, 0, 1, 0, 1, 1]), sequences).tolist() == [2.5, 2.5, 2.5, 0.0, 24.0, 24.0]
    assert sum_to_go(values, sequences).tolist() == [7.0, 6.0, 4.0, 8.0, 48.0, 32.0]
    assert sum_to_go(torch.zeros(0), torch.zeros(0).long()).tolist() == []


def rollout(rollout_id: int, reward: float, masks: list[list[int]]) -> Rollout:
    samples = [
        Sample(tokens=[5, *[6] * len(mask)], response_length=len(mask), loss_mask=mask, rollout_log_probs=[-1.0] * len(mask))
        for mask in masks
    ]
    return Rollout(rollout_id=rollout_id, group_index=0, samples=samples, reward=reward, stop_reason=StopReason.ANSWERED)


def built(folder: Path, result: str, credit: Credit = Credit.share) -> list[Any]:
    """Advantages of the sequences if a user's function returns this expression; two turns, and a sample of one token."""
    (folder / "mine.py").write_text(f"def advantage(config, groups):\n    return {result}\n")
    run = RunConfig(algorithm=AlgorithmConfig(advantage=f"{folder}/mine.py:advantage"), method=MethodConfig(credit=credit))
    group = Group(prompt=PROMPT, rollouts=[rollout(4, 1.0, [[1, 1, 0, 0, 1], [1]])])
    updates, _ = build_updates(PolicyGradient(run), [group])
    return [np.asarray(each.columns["advantage"]).tolist() for update in updates for each in update]


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ("{}", []),
        ("{4: 0.5}", [0.5, 0.5]),
        ("{4: [0.5, -0.5]}", [0.5, -0.5]),
        ("{4: [[0.5, 2.0], -0.5]}", [[0.5, 0.5, 2.0], -0.5]),
        ("{4: [[0.5, 1.0, 2.0], [3.0]]}", [[0.5, 1.0, 2.0], [3.0]]),
    ],
)
def test_advantages_are_of_rollouts_sequences_turns_or_tokens(result: str, expected: list[Any], tmp_path: Path):
    assert built(tmp_path, result) == expected


@pytest.mark.parametrize(("result", "expected"), [("{4: 0.5}", [0.25, 0.25]), ("{4: [0.5, 3.0]}", [0.25, 1.5])])
def test_credit_is_split_among_the_sequences_of_a_rollout(result: str, expected: list[float], tmp_path: Path):
    assert built(tmp_path, result, Credit.split) == expected


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ("None", "returned NoneType"),
        ("groups[3]", "raised IndexError"),
        ("{5: 1.0}", "rollout 5, which is not in the batch"),
        ("{4: [1.0]}", "1 advantages for the 2 samples of rollout 4"),
        ("{4: float('nan')}", "must be finite"),
        ("{4: [[1.0, 2.0, 3.0, 4.0], 1.0]}", "4 values of advantage for the 2 turns and 3 trained tokens of sequence 0"),
    ],
)
def test_others_end_the_run_with_the_functions_name(result: str, words: str, tmp_path: Path):
    with pytest.raises(HookError, match=r"algorithm\.advantage=.*mine\.py:advantage") as raised:
        built(tmp_path, result)
    assert words in str(raised.value)
