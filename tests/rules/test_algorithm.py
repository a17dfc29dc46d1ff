"""Contradicting options are refused by key, and an algorithm is what its name says."""

from typing import Any

import pytest

from vime.config import (
    AlgorithmName,
    Baseline,
    CorrectionConfig,
    CorrectionMode,
    KLPlace,
    OldLogprobs,
    RatioLevel,
    RunConfig,
    Surrogate,
)
from vime.rules.algorithm import ESSENCE, bounds, combinations, essence

TRUNCATE = CorrectionConfig(mode=CorrectionMode.truncate)
WRONG: dict[str, dict[str, Any]] = {
    "algorithm.old_logprobs": {"correction": TRUNCATE},
    "algorithm.normalization": {"baseline": Baseline.none},
    "algorithm.dual_clip": {"dual_clip": 3.0, "surrogate": Surrogate.cispo},
    "algorithm.kl_unbiased": {"kl_unbiased": True, "kl_place": KLPlace.reward},
    "algorithm.clip_high": {"clip_low": 0.3},
    "algorithm.correction.high": {"correction": CorrectionConfig(low=3.0)},
    "algorithm.overlong_buffer_tokens": {"overlong_max_tokens": 10, "overlong_buffer_tokens": 11},
    "algorithm.ratio": {"name": AlgorithmName.gspo, "ratio": RatioLevel.token},
    "algorithm.whitening": {"name": AlgorithmName.reinforce_plus_plus},
}


def keys_of(**settings: Any) -> set[str]:
    config = RunConfig()
    for name, value in settings.items():
        setattr(config.algorithm, name, value)
    return {problem.key for rule in (essence, bounds, combinations) for problem in rule(config)}


@pytest.mark.parametrize("key", WRONG)
def test_what_contradicts_is_refused(key: str):
    assert key in keys_of(**WRONG[key])


def test_what_belongs_together_is_accepted():
    assert keys_of() == set()
    assert keys_of(correction=TRUNCATE, old_logprobs=OldLogprobs.trainer, ratio=RatioLevel.sequence, dual_clip=3.0) == set()
    assert keys_of(name=AlgorithmName.sft, correction=TRUNCATE) == set()


def test_every_named_policy_algorithm_but_grpo_has_an_essence():
    assert set(AlgorithmName) - set(ESSENCE) == {AlgorithmName.grpo, AlgorithmName.sft}
