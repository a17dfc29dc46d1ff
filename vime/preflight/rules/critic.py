"""The critic: what it needs, what it replaces, and settings of it that have no effect."""

from typing import Any

from vime.algorithm.choice import own_class
from vime.algorithm.critic import ActorCritic
from vime.config import OWN_MODEL, AlgorithmName, Baseline, CriticConfig, CriticPlace, Normalization, RunConfig
from vime.errors import ConfigError, Problem, written

KEY = "algorithm.critic"
OWN_SETTINGS = ("lr", "num_epochs_per_batch", "warmup_steps")
"""Settings of a critic with a model of its own."""
TRUNK_SETTINGS = ("coefficient", "gradient_scale")
"""Settings of a value head on the policy."""
FILTER = "vime.algorithm.filter.dynamic_sampling"


def combinations(config: RunConfig) -> list[Problem]:
    """A critic replaces what compares the rollouts of a group, and trains beside a policy whose weights are all trained."""
    algorithm, place = config.algorithm, config.algorithm.critic.place
    if place is CriticPlace.none:
        return []
    chosen = f"{KEY}.place={place.value}"
    wrong = (
        (
            algorithm.name is AlgorithmName.sft,
            "algorithm",
            "sft",
            f"demonstrations have no rewards whose sum could be learned: use algorithm=ppo, or {KEY}.place=none",
        ),
        (
            config.trainer.lora.rank > 0,
            "trainer.lora.rank",
            config.trainer.lora.rank,
            f"{chosen} trains a value head, or a whole second model, where a run with adapters keeps and saves nothing but "
            "adapters: use 0, or an algorithm that compares groups",
        ),
        (
            algorithm.object is not None and not _takes_values(algorithm.object),
            "algorithm.object",
            algorithm.object,
            f"its class does not read values: derive it from vime.algorithm.critic.ActorCritic, or use {KEY}.place=none",
        ),
        (
            algorithm.advantage is not None,
            "algorithm.advantage",
            algorithm.advantage,
            f"{chosen} computes advantages from values: use null, or {KEY}.place=none",
        ),
        (
            algorithm.baseline is not Baseline.none,
            "algorithm.baseline",
            algorithm.baseline.value,
            f"the values of {chosen} take the place of the rewards of a group: use none",
        ),
        (
            algorithm.normalization is not Normalization.none,
            "algorithm.normalization",
            algorithm.normalization.value,
            f"{chosen} compares no group, so nothing of a group is there to divide by: use none, or algorithm.whitening=true",
        ),
        (
            config.rollout.filter == FILTER and config.rollout.num_samples_per_prompt == 1,
            "rollout.filter",
            config.rollout.filter,
            "it keeps groups whose rewards differ, and those of a single rollout never do: use null",
        ),
    )
    return [Problem(key=key, value=value, remedy=remedy) for is_wrong, key, value, remedy in wrong if is_wrong]


def unread(config: RunConfig) -> list[Problem]:
    """Settings of a critic in another place, or of another lambda, have their defaults; the policy learns after the warm-up."""
    critic, problems = config.algorithm.critic, list[Problem]()
    if critic.place is CriticPlace.none:
        names = [name for name in CriticConfig.__dataclass_fields__ if name != "place"]
        return _changed(critic, names, f"there is no critic: set {KEY}.place, or use the default")
    if critic.place is CriticPlace.trunk:
        remedy = f"the head of {KEY}.place=trunk learns in the policy's own updates: use {KEY}.place=model, or the default"
        problems += _changed(critic, OWN_SETTINGS, remedy)
    if critic.place in OWN_MODEL:
        remedy = f"{KEY}.place={critic.place.value} shares no layer with the policy: use {KEY}.place=trunk, or the default"
        problems += _changed(critic, TRUNK_SETTINGS, remedy)
    if critic.adaptive_alpha is not None:
        remedy = f"{KEY}.adaptive_alpha sets lambda by the length: use null there, or the default"
        problems += _changed(critic, ("gae_lambda",), remedy)
    if critic.warmup_steps >= config.trainer.num_steps:
        remedy = f"must be less than trainer.num_steps={config.trainer.num_steps}, or the policy never learns"
        problems.append(Problem(key=f"{KEY}.warmup_steps", value=critic.warmup_steps, remedy=remedy))
    return problems


def _changed(critic: CriticConfig, names: Any, remedy: str) -> list[Problem]:
    default = CriticConfig()
    values = {name: getattr(critic, name) for name in names}
    changed = {name: value for name, value in values.items() if value != getattr(default, name)}
    return [
        Problem(key=f"{KEY}.{name}", value=value, remedy=f"{remedy}, {written(getattr(default, name))}")
        for name, value in changed.items()
    ]


def _takes_values(path: str) -> bool:
    try:
        return issubclass(own_class(path), ActorCritic)
    except ConfigError:
        return True  # which `objective.own_object` reports
