"""The algorithm that a run has chosen: the built-in one of a name, or the user's object."""

from typing import Any

from vime.algorithm.algorithm import OBJECT, REFERENCE, Algorithm, Forward, Weights
from vime.algorithm.critic import ActorCritic, Critic
from vime.algorithm.distillation import Distillation, teachers_in_trainer
from vime.algorithm.policy_gradient import PolicyGradient
from vime.algorithm.sft import Supervised
from vime.config import OWN_MODEL, AlgorithmName, CriticPlace, RunConfig
from vime.errors import ConfigError, Problem
from vime.hooks import import_remedy, load_hook

COPIES = (Weights.first, Weights.average, Weights.checkpoint)
"""Weights beside the policy's, of the same shapes."""


def algorithm_of(run: RunConfig) -> Algorithm:
    """The algorithm of a run: the object of `algorithm.object`, or the built-in one of `algorithm.name`.

    Raises `ConfigError` with key, value and remedy if the object cannot be imported, is not an algorithm, or takes other options.
    """
    if run.algorithm.object is None:
        if run.algorithm.name is AlgorithmName.sft:
            return Supervised(run)
        if run.algorithm.distillation.teachers:
            return Distillation(run)
        return PolicyGradient(run) if run.algorithm.critic.place is CriticPlace.none else ActorCritic(run)
    return own_class(run.algorithm.object)(run)


def critic_of(run: RunConfig) -> Critic | None:
    """The objective of the critic's weights; None if a run has no such weights beside the policy's."""
    return Critic(run) if run.algorithm.critic.place in OWN_MODEL else None


def own_class(path: str) -> type[Algorithm]:
    """The class at a dotted path or at `file.py:Class`. Raises `ConfigError` if there is none, or if it is not an algorithm."""
    try:
        found: Any = load_hook(path)
    except ImportError as error:
        raise ConfigError([Problem(key=OBJECT, value=path, remedy=import_remedy(path, error))]) from error
    if isinstance(found, type) and issubclass(found, Algorithm):
        return found
    remedy = "is no algorithm: define a class Mine(Algorithm) or Mine(PolicyGradient) with advantages and loss"
    raise ConfigError([Problem(key=OBJECT, value=path, remedy=f"{remedy} (vime/algorithm/README.md)")])


def is_paired(run: RunConfig) -> bool:
    """True if a run learns from pairs of replies (`Algorithm.is_paired`); an object that cannot be imported has none."""
    try:
        return run.algorithm.object is not None and own_class(run.algorithm.object).is_paired
    except ConfigError:
        return False


def second_weights(run: RunConfig) -> list[Forward]:
    """Copies that the trainer of a run keeps beside its own weights, each as the need that they answer.

    Without an object of the user nothing is imported.
    """
    config = run.algorithm
    if config.object is None:
        has_reference = config.kl_coefficient and config.name is not AlgorithmName.sft
        needs = [*([REFERENCE] if has_reference else []), *teachers_in_trainer(config.distillation).values()]
    else:
        algorithm = algorithm_of(run)
        needs = [*algorithm.needs, *algorithm.asked]
    return list(dict.fromkeys(need.weights_only for need in needs if need.weights in COPIES))
