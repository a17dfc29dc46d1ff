"""The training objective: a named algorithm keeps the choices of its file, and options must not contradict each other."""

from enum import Enum
from functools import cache
from typing import Any

from omegaconf import OmegaConf

from vime.algorithm.choice import algorithm_of
from vime.config import (
    PROBABILITY_MASKS,
    AlgorithmConfig,
    AlgorithmName,
    Baseline,
    Comparison,
    CorrectionMode,
    CriticPlace,
    KLPlace,
    Normalization,
    OldLogprobs,
    RatioLevel,
    RunConfig,
    Surrogate,
    TurnCredit,
)
from vime.errors import ConfigError, Problem, written
from vime.preflight.compose import CONF
from vime.preflight.rules.numbers import value_at

UNFIXED = (AlgorithmName.paper, AlgorithmName.slime_agentic, AlgorithmName.custom)
"""Names without a fixed meaning: recipes and the command line may change every option."""
NAMED = tuple(name for name in AlgorithmName if name not in (*UNFIXED, AlgorithmName.sft))
"""Policy gradient algorithms with a fixed meaning."""
WITHOUT_GROUP = (Baseline.running, Baseline.none)
"""Baselines that do not compare the rollouts of a group."""
NUMBERS_OF: dict[Surrogate, tuple[str, ...]] = {
    Surrogate.clipped: ("clip_low", "clip_high", "dual_clip"),
    Surrogate.masked: ("clip_low", "clip_high"),
    Surrogate.cispo: ("clip_low", "clip_high"),
    Surrogate.gmpo: ("clip_low", "clip_high"),
    Surrogate.sapo: ("tau_positive", "tau_negative"),
    **dict.fromkeys(PROBABILITY_MASKS, ("max_divergence",)),
}
"""The numbers that each surrogate reads; the others have no effect with it."""


@cache
def choices_of(name: AlgorithmName) -> dict[str, str | bool]:
    """The choices (words and truth values, not numbers) that `conf/algorithm/<name>.yaml` makes, by key; none for a method's own.

    Example: `{"baseline": "mean", "ratio": "sequence", …}` for gspo.
    """
    if name in UNFIXED:
        return {}
    file = _file_of(name)
    defaults, values = AlgorithmConfig(), file.get("algorithm", file)
    return {key: value for key, value in values.items() if key != "name" and isinstance(getattr(defaults, key), (Enum, bool))}


def _file_of(name: AlgorithmName) -> Any:
    return OmegaConf.to_container(OmegaConf.load(CONF / "algorithm" / f"{name.value}.yaml"))


@cache
def has_critic(name: AlgorithmName) -> bool:
    """True if `conf/algorithm/<name>.yaml` has a critic; where its values come from is then free."""
    return "critic" in _file_of(name)


@cache
def has_teachers(name: AlgorithmName) -> bool:
    """True if `conf/algorithm/<name>.yaml` learns from teachers; which ones is free."""
    return "distillation" in _file_of(name)


def own_object(config: RunConfig) -> list[Problem]:
    """An algorithm of the user can be imported, and takes the options that it is given."""
    algorithm = config.algorithm
    if algorithm.object is None:
        remedy = "only an algorithm of your own has options of its own: set algorithm.object, or use an option of algorithm"
        return [Problem(key=f"algorithm.options.{name}", value=value, remedy=remedy) for name, value in algorithm.options.items()]
    try:
        algorithm_of(config)
    except ConfigError as error:
        return error.problems
    return []


def essence(config: RunConfig) -> list[Problem]:
    """A named algorithm keeps the choices of its file; no preset, recipe or command line may change them."""
    name, problems, place = config.algorithm.name, [], config.algorithm.critic.place
    if config.algorithm.object is not None:
        return []
    if name in NAMED and (place is CriticPlace.none) is has_critic(name):
        use = ", ".join(each.value for each in CriticPlace if (each is not CriticPlace.none) is has_critic(name))
        remedy = f"{name.value} is one with {'a' if has_critic(name) else 'no'} critic: use {use}, or algorithm.name=custom"
        problems.append(Problem(key="algorithm.critic.place", value=place.value, remedy=remedy))
    teachers = config.algorithm.distillation.teachers
    if name in NAMED and teachers and not has_teachers(name):
        remedy = f"{name.value} has no teacher: use algorithm=on_policy_distillation, or add algorithm.name=custom"
        problems.append(Problem(key="algorithm.distillation.teachers", value=", ".join(teachers), remedy=remedy))
    for key, wanted in choices_of(name).items():
        value = value_at(config, f"algorithm.{key}")
        found = value.value if isinstance(value, Enum) else value
        if found != wanted:
            remedy = (
                f"{name.value} requires algorithm.{key}={written(wanted)} (see conf/algorithm/{name.value}.yaml): use that, or "
                "add algorithm.name=custom to combine settings freely"
            )
            problems.append(Problem(key=f"algorithm.{key}", value=found, remedy=remedy))
    return problems


def bounds(config: RunConfig) -> list[Problem]:
    """Upper bounds are at least the lower ones."""
    algorithm, correction, problems = config.algorithm, config.algorithm.correction, []
    if 0 <= algorithm.clip_high < algorithm.clip_low:
        remedy = f"must be at least algorithm.clip_low={algorithm.clip_low:g}: the clip range is 1 - clip_low … 1 + clip_high"
        problems.append(Problem(key="algorithm.clip_high", value=algorithm.clip_high, remedy=remedy))
    if 0 < correction.high < correction.low:
        remedy = f"must be at least algorithm.correction.low={correction.low:g}"
        problems.append(Problem(key="algorithm.correction.high", value=correction.high, remedy=remedy))
    most = algorithm.overlong_max_tokens
    if most is not None and algorithm.overlong_buffer_tokens > most >= 1:
        remedy = f"must be at most algorithm.overlong_max_tokens={most}, below which the buffer lies"
        problems.append(Problem(key="algorithm.overlong_buffer_tokens", value=algorithm.overlong_buffer_tokens, remedy=remedy))
    return problems


def combinations(config: RunConfig) -> list[Problem]:
    """Options that together have no effect or a wrong one."""
    algorithm = config.algorithm
    if algorithm.name is AlgorithmName.sft or algorithm.object is not None:
        return []
    corrects, surrogate = _corrects(config), algorithm.surrogate
    masks, takes_tokens = surrogate in PROBABILITY_MASKS, surrogate in (*PROBABILITY_MASKS, Surrogate.gmpo)
    by_mode = algorithm.correction.mode is not CorrectionMode.none
    wrong = (
        (
            corrects and masks,
            Problem(
                key="algorithm.correction.mode" if by_mode else "algorithm.correction.veto",
                value=algorithm.correction.mode.value if by_mode else algorithm.correction.veto,
                remedy=f"the ratio of algorithm.surrogate={surrogate.value} refers to the sampler, and needs no correction: use "
                f"{'none' if by_mode else 0}, or algorithm.surrogate=clipped",
            ),
        ),
        (
            corrects and not masks and algorithm.old_logprobs is OldLogprobs.engine,
            Problem(
                key="algorithm.old_logprobs",
                value=algorithm.old_logprobs.value,
                remedy="algorithm.correction compares the trainer's old logprobs with the engine's: use trainer",
            ),
        ),
        (
            masks and algorithm.old_logprobs is OldLogprobs.trainer,
            Problem(
                key="algorithm.old_logprobs",
                value=algorithm.old_logprobs.value,
                remedy=f"algorithm.surrogate={surrogate.value} compares the probabilities of trainer and sampler, and only the "
                "engine's logprobs are the sampler's: use engine",
            ),
        ),
        (
            takes_tokens and algorithm.ratio is RatioLevel.sequence,
            Problem(
                key="algorithm.ratio",
                value=algorithm.ratio.value,
                remedy="algorithm.surrogate=gmpo clips the ratios of tokens and takes their mean itself: use token, or "
                "algorithm.surrogate=clipped to clip the mean (GSPO)"
                if surrogate is Surrogate.gmpo
                else f"algorithm.surrogate={surrogate.value} masks single tokens, which does not bound the ratio of their "
                "sequence: use token, or algorithm.surrogate=clipped",
            ),
        ),
        (
            algorithm.overlong_max_tokens is not None and algorithm.normalization is Normalization.mean,
            Problem(
                key="algorithm.overlong_max_tokens",
                value=algorithm.overlong_max_tokens,
                remedy="the penalty makes rewards negative, and algorithm.normalization=mean divides by their mean: use null, or "
                "algorithm.normalization=std",
            ),
        ),
        (
            algorithm.baseline in WITHOUT_GROUP and algorithm.normalization is not Normalization.none,
            Problem(
                key="algorithm.normalization",
                value=algorithm.normalization.value,
                remedy=f"algorithm.baseline={algorithm.baseline.value} compares no group, so nothing of a group is there to "
                "divide by: use none, or algorithm.whitening=true to scale advantages by the batch",
            ),
        ),
        *_centering(config),
        *_seats(config),
        *_turn_credit(config),
        (
            algorithm.kl_unbiased and algorithm.kl_place is KLPlace.reward,
            Problem(
                key="algorithm.kl_unbiased",
                value=True,
                remedy="a KL penalty on the reward has no gradient to correct: use false, or algorithm.kl_place=loss",
            ),
        ),
    )
    return [problem for is_wrong, problem in wrong if is_wrong]


def _centering(config: RunConfig) -> list[tuple[bool, Problem]]:
    """Combinations in which score centering has no effect or a wrong one."""
    algorithm = config.algorithm
    return [
        (
            algorithm.score_centering and algorithm.surrogate is not Surrogate.cispo,
            Problem(
                key="algorithm.score_centering",
                value=True,
                remedy="the mean of scores is taken with the weights of algorithm.surrogate=cispo: use that (clip_low=0 and "
                "clip_high=0 for no importance weights), or false here",
            ),
        ),
        (
            algorithm.score_centering and algorithm.loss is not None,
            Problem(
                key="algorithm.score_centering",
                value=True,
                remedy=f"its term belongs to algorithm.surrogate=cispo, which algorithm.loss={algorithm.loss} replaces: use "
                "false",
            ),
        ),
        (
            algorithm.score_centering and algorithm.ratio is RatioLevel.sequence,
            Problem(
                key="algorithm.score_centering",
                value=True,
                remedy="it takes the mean over the tokens that could have been sampled at one place, whose ratios are those of "
                "tokens: use algorithm.ratio=token, or false here",
            ),
        ),
        (
            algorithm.score_centering and algorithm.old_logprobs is OldLogprobs.trainer,
            Problem(
                key="algorithm.old_logprobs",
                value=algorithm.old_logprobs.value,
                remedy="algorithm.score_centering takes the mean under the sampler, whose logprobs are the engine's: use engine",
            ),
        ),
        (
            algorithm.score_centering and not config.rollout.num_logprobs,
            Problem(
                key="rollout.num_logprobs",
                value=0,
                remedy="algorithm.score_centering reads the sampler's likeliest tokens: use 20, or "
                "algorithm.score_centering=false",
            ),
        ),
    ]


def _seats(config: RunConfig) -> list[tuple[bool, Problem]]:
    """Combinations in which a running baseline or seats have no effect or a wrong one."""
    algorithm = config.algorithm
    return [
        (
            algorithm.baseline is not Baseline.running and algorithm.baseline_decay != AlgorithmConfig().baseline_decay,
            Problem(
                key="algorithm.baseline_decay",
                value=algorithm.baseline_decay,
                remedy=f"has no effect with algorithm.baseline={algorithm.baseline.value}: use the default, "
                f"{AlgorithmConfig().baseline_decay:g}, or algorithm.baseline=running",
            ),
        ),
        (
            bool(algorithm.nested_seats) and algorithm.comparison is not Comparison.seat,
            Problem(
                key="algorithm.nested_seats",
                value=algorithm.nested_seats,
                remedy="seats are told apart only with algorithm.comparison=seat: use that, or []",
            ),
        ),
        (
            bool(algorithm.nested_seats) and algorithm.baseline in WITHOUT_GROUP,
            Problem(
                key="algorithm.nested_seats",
                value=algorithm.nested_seats,
                remedy=f"algorithm.baseline={algorithm.baseline.value} does not compare the samples of a rollout with one "
                "another: use [], or algorithm.baseline=mean",
            ),
        ),
        (
            algorithm.comparison is Comparison.seat and algorithm.baseline is Baseline.none,
            Problem(
                key="algorithm.comparison",
                value=algorithm.comparison.value,
                remedy="algorithm.baseline=none compares nothing: use rollout, or algorithm.baseline=mean",
            ),
        ),
        (
            algorithm.comparison is Comparison.seat and algorithm.advantage is not None,
            Problem(
                key="algorithm.comparison",
                value=algorithm.comparison.value,
                remedy=f"algorithm.advantage={algorithm.advantage} compares rewards itself: use rollout",
            ),
        ),
    ]


def _turn_credit(config: RunConfig) -> list[tuple[bool, Problem]]:
    """Combinations in which credit for turns has no effect or a wrong one."""
    algorithm, default = config.algorithm, AlgorithmConfig()
    chosen, has_credit = f"algorithm.turn_credit={algorithm.turn_credit.value}", algorithm.turn_credit is not TurnCredit.none
    unread = ["turn_discount"] * (not has_credit) + ["turn_weight"] * (algorithm.turn_credit is not TurnCredit.states)
    found = [
        (
            getattr(algorithm, name) != getattr(default, name),
            f"algorithm.{name}",
            getattr(algorithm, name),
            f"has no effect with {chosen}: use the default, {getattr(default, name):g}, or algorithm.turn_credit=states",
        )
        for name in unread
    ]
    if has_credit:
        found += [
            (
                algorithm.baseline is not Baseline.mean,
                "algorithm.baseline",
                algorithm.baseline.value,
                f"{chosen} compares returns with their mean: use mean, or algorithm.turn_credit=none",
            ),
            (
                algorithm.normalization is Normalization.mean,
                "algorithm.normalization",
                algorithm.normalization.value,
                f"the mean return of turns may be 0 or negative, and {chosen} would divide by it: use std or none",
            ),
            (
                algorithm.kl_coefficient > 0 and algorithm.kl_place is KLPlace.reward,
                "algorithm.kl_place",
                algorithm.kl_place.value,
                f"{chosen} compares returns of turns before a penalty on single tokens: use loss, or algorithm.turn_credit=none",
            ),
            (
                algorithm.advantage is not None,
                "algorithm.turn_credit",
                algorithm.turn_credit.value,
                f"algorithm.advantage={algorithm.advantage} gives the advantages itself: use none",
            ),
            (
                algorithm.critic.place is not CriticPlace.none,
                "algorithm.turn_credit",
                algorithm.turn_credit.value,
                "the values of algorithm.critic give credit to tokens: use none",
            ),
        ]
    return [(is_wrong, Problem(key=key, value=value, remedy=remedy)) for is_wrong, key, value, remedy in found]


def unread_numbers(config: RunConfig) -> list[Problem]:
    """Numbers that another surrogate reads have their defaults."""
    algorithm, default = config.algorithm, AlgorithmConfig()
    if algorithm.name is AlgorithmName.sft or algorithm.object is not None or algorithm.loss is not None:
        return []
    read, problems = NUMBERS_OF[algorithm.surrogate], []
    for name in dict.fromkeys(name for names in NUMBERS_OF.values() for name in names if name not in read):
        value, unset = getattr(algorithm, name), getattr(default, name)
        if value != unset:
            others = " or ".join(surrogate.value for surrogate, names in NUMBERS_OF.items() if name in names)
            remedy = (
                f"has no effect with algorithm.surrogate={algorithm.surrogate.value}, which reads {', '.join(read)}: use the "
                f"default, {written(unset)}, or algorithm.surrogate={others}"
            )
            problems.append(Problem(key=f"algorithm.{name}", value=value, remedy=remedy))
    return problems


def staleness(config: RunConfig) -> list[Problem]:
    """Tokens that older weights sampled are corrected by the importance ratio or by `algorithm.correction`."""
    algorithm, bound = config.algorithm, config.rollout.max_staleness
    is_own = algorithm.object is not None
    if algorithm.name is AlgorithmName.sft or is_own or algorithm.old_logprobs is OldLogprobs.engine or bound < 1:
        return []
    if config.algorithm.correction.mode is not CorrectionMode.none:
        return []
    remedy = (
        f"with rollout.max_staleness={bound} the policy that sampled a token may be up to {bound} weight version(s) old, and "
        "with algorithm.old_logprobs=trainer nothing corrects for that: set algorithm.correction.mode=truncate (truncated "
        "importance weights), algorithm.old_logprobs=engine (logprobs of the policy that sampled), or rollout.max_staleness=0 "
        "(on-policy)"
    )
    return [Problem(key="algorithm.correction.mode", value=algorithm.correction.mode.value, remedy=remedy)]


def _corrects(config: RunConfig) -> bool:
    correction = config.algorithm.correction
    return correction.mode is not CorrectionMode.none or correction.veto > 0
