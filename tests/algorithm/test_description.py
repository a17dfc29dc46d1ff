"""The plan says what an objective is made of."""

from vime.algorithm.description import describe
from vime.config import (
    PROBABILITY_MASKS,
    AlgorithmConfig,
    CorrectionConfig,
    CorrectionMode,
    KLPlace,
    Normalization,
    RatioLevel,
    Surrogate,
)
from vime.preflight.compose import compose_run


def test_a_change_of_any_part_shows():
    plain = describe(AlgorithmConfig())
    assert plain == "reward minus group mean, divided by group deviation; clipped token ratio 0.8 … 1.2; mean over tokens; no KL"
    changes = [
        {"whitening": True},
        {"ratio": RatioLevel.sequence},
        {"clip_high": 0.28},
        {"dual_clip": 3.0},
        {"kl_coefficient": 0.1},
        {"kl_coefficient": 0.1, "kl_place": KLPlace.reward},
        {"correction": CorrectionConfig(mode=CorrectionMode.mask)},
        {"loss": "mine.loss"},
        *({"normalization": normalization} for normalization in Normalization if normalization is not Normalization.std),
        *({"surrogate": surrogate} for surrogate in Surrogate if surrogate is not Surrogate.clipped),
        {"surrogate": Surrogate.gmpo, "clip_low": 0.3},
        {"surrogate": Surrogate.sapo, "tau_positive": 1.1},
        {"surrogate": Surrogate.sapo, "tau_negative": 1.1},
        *({"surrogate": surrogate, "max_divergence": 0.25} for surrogate in PROBABILITY_MASKS),
    ]
    assert len({describe(AlgorithmConfig(**change)) for change in changes} | {plain}) == len(changes) + 1


def test_the_values_of_a_methods_paper_are_seen_under_grpo():
    config = compose_run(["+method=memagent", "model=qwen2.5-7b", "mode=plan"]).config
    assert describe(config.algorithm) == (
        "reward minus group mean; clipped token ratio 0.8 … 1.2; mean over tokens; KL 0.001 low_var_kl in the loss"
    )
