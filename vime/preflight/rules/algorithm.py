"""The objective: a name keeps what makes it itself, and options that contradict each other are refused."""

from enum import Enum

from vime.config import (
    AlgorithmName,
    Baseline,
    CorrectionMode,
    KLPlace,
    Normalization,
    OldLogprobs,
    RunConfig,
    Surrogate,
)
from vime.errors import Problem
from vime.preflight.rules.numbers import value_at

ESSENCE: dict[AlgorithmName, dict[str, str | bool]] = {
    AlgorithmName.grpo: {
        "baseline": "mean",
        "normalization": "std",
        "whitening": False,
        "ratio": "token",
        "surrogate": "clipped",
    },
    AlgorithmName.dr_grpo: {"baseline": "mean", "normalization": "none", "whitening": False, "aggregation": "constant"},
    AlgorithmName.dapo: {"baseline": "mean", "normalization": "std", "surrogate": "clipped", "aggregation": "token"},
    AlgorithmName.rloo: {"baseline": "leave_one_out", "normalization": "none", "whitening": False},
    AlgorithmName.gspo: {"baseline": "mean", "ratio": "sequence", "surrogate": "clipped", "aggregation": "sample"},
    AlgorithmName.cispo: {"baseline": "mean", "ratio": "token", "surrogate": "cispo"},
    AlgorithmName.reinforce_plus_plus: {"baseline": "none", "normalization": "none", "whitening": True},
    AlgorithmName.reinforce_plus_plus_baseline: {"baseline": "mean", "normalization": "none", "whitening": True},
}
"""Without these values an algorithm is another one; a paper's recipe and `custom` may be changed at will."""


def essence(config: RunConfig) -> list[Problem]:
    """An algorithm is what its name says, whatever a preset, a recipe or the command line set."""
    name, problems = config.algorithm.name, []
    for key, wanted in ESSENCE.get(name, {}).items():
        value = value_at(config, f"algorithm.{key}")
        found = value.value if isinstance(value, Enum) else value
        if found != wanted:
            text = str(wanted).lower()
            remedy = f"{name.value} requires algorithm.{key}={text}; for an objective of your own give algorithm.name=custom"
            problems.append(Problem(key=f"algorithm.{key}", value=found, remedy=remedy))
    return problems


def bounds(config: RunConfig) -> list[Problem]:
    """No range is turned round."""
    algorithm, correction, problems = config.algorithm, config.algorithm.correction, []
    if 0 <= algorithm.clip_high < algorithm.clip_low:
        remedy = f"give at least algorithm.clip_low={algorithm.clip_low:g}: ratios are clipped to 1 - clip_low … 1 + clip_high"
        problems.append(Problem(key="algorithm.clip_high", value=algorithm.clip_high, remedy=remedy))
    if 0 < correction.high < correction.low:
        remedy = f"give at least algorithm.correction.low={correction.low:g}"
        problems.append(Problem(key="algorithm.correction.high", value=correction.high, remedy=remedy))
    most = algorithm.overlong_max_tokens
    if most is not None and algorithm.overlong_buffer_tokens > most >= 1:
        remedy = f"it is a part of algorithm.overlong_max_tokens={most}: give at most that"
        problems.append(Problem(key="algorithm.overlong_buffer_tokens", value=algorithm.overlong_buffer_tokens, remedy=remedy))
    return problems


def combinations(config: RunConfig) -> list[Problem]:
    """Options that would have no effect, or a wrong one, together."""
    algorithm = config.algorithm
    if algorithm.name is AlgorithmName.sft:
        return []
    corrects = _corrects(config)
    wrong = (
        (
            corrects and algorithm.old_logprobs is OldLogprobs.engine,
            Problem(
                key="algorithm.old_logprobs",
                value=algorithm.old_logprobs.value,
                remedy="algorithm.correction weighs the trainer's old logprobs against the engine's: give trainer",
            ),
        ),
        (
            algorithm.baseline is Baseline.none and algorithm.normalization is Normalization.std,
            Problem(
                key="algorithm.normalization",
                value=algorithm.normalization.value,
                remedy="with algorithm.baseline=none no group is compared: give none, and whitening=true to scale by the batch",
            ),
        ),
        (
            algorithm.dual_clip is not None and algorithm.surrogate is Surrogate.cispo,
            Problem(
                key="algorithm.dual_clip",
                value=algorithm.dual_clip,
                remedy="cispo bounds the ratio itself: give null, and lower algorithm.clip_high",
            ),
        ),
        (
            algorithm.kl_unbiased and algorithm.kl_place is KLPlace.reward,
            Problem(
                key="algorithm.kl_unbiased",
                value=True,
                remedy="a reward has no gradient to set right: give false, or algorithm.kl_place=loss",
            ),
        ),
    )
    return [problem for is_wrong, problem in wrong if is_wrong]


def staleness(config: RunConfig) -> list[Problem]:
    """Tokens of older weights are weighed by how likely those weights made them: by the ratio itself, or by a correction."""
    algorithm, bound = config.algorithm, config.rollout.max_staleness
    if algorithm.name is AlgorithmName.sft or algorithm.old_logprobs is OldLogprobs.engine or bound < 1:
        return []
    if config.algorithm.correction.mode is not CorrectionMode.none:
        return []
    remedy = (
        f"tokens are up to rollout.max_staleness={bound} weight versions old, and with algorithm.old_logprobs=trainer the ratio "
        "starts at the weights in training, so the policy that sampled them is ignored: give "
        "algorithm.correction.mode=truncate, or algorithm.old_logprobs=engine, or rollout.max_staleness=0"
    )
    return [Problem(key="algorithm.correction.mode", value=algorithm.correction.mode.value, remedy=remedy)]


def _corrects(config: RunConfig) -> bool:
    correction = config.algorithm.correction
    return correction.mode is not CorrectionMode.none or correction.veto > 0
