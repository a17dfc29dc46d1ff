"""Rewards of ToolOrchestra (arXiv 2511.21689, equation 2 and appendix L), of its public reproductions, and ours.

Pure functions on the rollouts of one group. Cost and latency are amounts that are never negative, and a `Preference` has no
negative weight, so no caller can turn a price into a bonus. Two published variants do so by mistake; their names end in
`sign_error`.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

ACCURACY, COST, LATENCY = "accuracy", "cost", "latency"
"""Names of the weights, beside those of the tools."""
CENTS = 100
WEIGHT_REMEDY = "use 0 to 1; a weight above 0 on cost or latency rewards being cheap or quick"


class Variant(Enum):
    """The formula of the reward."""

    corrected = "corrected"
    """This project's: see `corrected`."""
    paper = "paper"
    """Equation 2: features min-max normalized over the group, weighted by the preference; 0 when wrong. The code of slime-agentic
    computes the same for weights that are not negative."""
    slime_agentic_sign_error = "slime_agentic_sign_error"
    """Equation 2 with the weights that slime-agentic published. Those of cost and latency are negative although both features are
    negated already, so that the most expensive and slowest rollout gets the highest reward."""
    nvlabs_sign_error = "nvlabs_sign_error"
    """Equation 2 as the authors' code normalizes cost and latency: the amounts themselves, by the bounds of their negatives."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Features:
    """Features of one rollout that its reward depends on.

    Example: `Features(correct=True, dollars=0.02, seconds=8.5, calls={"search-1": 2, "answer-1": 1})`. Raises ValueError for an
    amount that is negative or not finite.
    """

    correct: bool
    dollars: float = 0.0
    seconds: float = 0.0
    calls: Mapping[str, int] = field(default_factory=dict)
    """Number of calls of each tool or expert, by name."""
    stopped: bool = False
    """True if a limit or a failure ended the rollout. What it would have cost is then unknown: its amounts earn nothing and take
    no part in the normalization over the group."""

    def __post_init__(self) -> None:
        for name, value in {"dollars": self.dollars, "seconds": self.seconds, **self.calls}.items():
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name}={value}: use a finite number that is 0 or more")


@dataclass(frozen=True, kw_only=True, slots=True)
class Preference:
    """The preferences of a user (the paper's P): weights from 0 to 1.

    Example: `Preference(accuracy=1.0, cost=0.3, latency=0.1, tools={"answer-2": 0.2})`; `cost` is the weight of being cheap,
    `latency` that of being quick. Raises ValueError for a weight outside 0 to 1.
    """

    accuracy: float = 1.0
    cost: float = 0.0
    latency: float = 0.0
    tools: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in wrong_weights(self.weights()).items():
            raise ValueError(f"the preference's weight of {name} is {value}: {WEIGHT_REMEDY}")

    def weights(self) -> dict[str, float]:
        """All weights by name."""
        return {**self.tools, ACCURACY: self.accuracy, COST: self.cost, LATENCY: self.latency}


def wrong_weights(weights: Mapping[str, float]) -> dict[str, float]:
    """The weights that do not lie between 0 and 1, by name."""
    return {name: weight for name, weight in weights.items() if not 0.0 <= weight <= 1.0}


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """The share of `corrected` that depends on cost and latency, and the amounts at which half of the bonus for each is lost.

    Example: with `Scale(dollars=0.05, seconds=30.0, share=0.3)` a correct answer is worth 0.7 to 1. Raises ValueError unless the
    amounts are positive and 0 <= share < 1.
    """

    dollars: float = 0.05
    seconds: float = 30.0
    share: float = 0.3

    def __post_init__(self) -> None:
        if not (0 < self.dollars < math.inf and 0 < self.seconds < math.inf):
            raise ValueError(f"dollars={self.dollars}, seconds={self.seconds}: use amounts above 0")
        if not 0 <= self.share < 1:
            raise ValueError(
                f"share={self.share}: use 0 or more and less than 1, so that a correct answer stays above a wrong one"
            )


PUBLISHED_WEIGHTS: Mapping[str, float] = {ACCURACY: 1.0, COST: -0.3, LATENCY: -0.1}
"""The weights that slime-agentic's data preparation writes."""


def group_rewards(variant: Variant, group: Sequence[Features], preference: Preference, scale: Scale) -> list[float]:
    """One reward per rollout of a group, in its order."""
    if variant is Variant.corrected:
        return [corrected(features, preference, scale) for features in group]
    if variant is Variant.paper:
        return min_max_rewards(group, preference.weights())
    if variant is Variant.slime_agentic_sign_error:
        return min_max_rewards(group, PUBLISHED_WEIGHTS)
    return nvlabs_sign_error(group, preference)


def corrected(features: Features, preference: Preference, scale: Scale) -> float:
    """0 for a wrong rollout; for a correct one 1 - share + share × efficiency.

    It depends on no other rollout of the group, so higher cost or latency of one never raises the reward of another; and where
    all rollouts are correct it keeps the reward of the outcome, which min-max normalization sets to 0.
    """
    if not features.correct:
        return 0.0
    return (1 - scale.share) + scale.share * efficiency(features, preference, scale)


def efficiency(features: Features, preference: Preference, scale: Scale) -> float:
    """The weighted mean of cheapness, quickness and the share of calls that went to preferred tools, from 0 to 1.

    Cheapness and quickness are s / (s + x) for an amount x on the scale s. 1 if the preference gives none of the three a weight.
    """
    num_calls = sum(features.calls.values())
    best_tool = max(preference.tools.values(), default=0.0)
    total = preference.cost + preference.latency + best_tool
    if total == 0:
        return 1.0
    tools = sum(weight * features.calls.get(name, 0) for name, weight in preference.tools.items()) / max(num_calls, 1)
    if features.stopped:
        return 0.0
    cheap = preference.cost * scale.dollars / (scale.dollars + features.dollars)
    quick = preference.latency * scale.seconds / (scale.seconds + features.seconds)
    return (cheap + quick + tools) / total


def min_max_rewards(group: Sequence[Features], weights: Mapping[str, float]) -> list[float]:
    """Equation 2: the weighted sum of the features, each min-max normalized over the group (0 if constant); 0 when wrong.

    Cost and latency are negated before they are normalized, so that 1 is the cheapest and the quickest. Names without a weight
    count 0. Stopped rollouts take part in the normalization of the accuracy alone.
    """
    ended = [features for features in group if not features.stopped]
    columns = {COST: [-features.dollars for features in ended], LATENCY: [-features.seconds for features in ended]}
    for name in sorted({name for features in ended for name in features.calls} - {ACCURACY, *columns}):
        columns[name] = [float(features.calls.get(name, 0)) for features in ended]
    normalized = {name: min_max(values) for name, values in columns.items()}
    amounts = iter([sum(weights.get(name, 0.0) * values[i] for name, values in normalized.items()) for i in range(len(ended))])
    accuracies = min_max([float(features.correct) for features in group])
    rewards = []
    for features, accuracy in zip(group, accuracies, strict=True):
        total = weights.get(ACCURACY, 0.0) * accuracy + (0.0 if features.stopped else next(amounts))
        rewards.append(total if features.correct else 0.0)
    return rewards


def nvlabs_sign_error(group: Sequence[Features], preference: Preference) -> list[float]:
    """Equation 2, but with cost and latency normalized as in the authors' code: (x + max) / (max - min) for an amount x.

    The code subtracts the minimum of the negated amounts from the amount itself. The result grows with the amount and exceeds 1.
    """
    without = Preference(accuracy=preference.accuracy, tools=preference.tools)
    rewards = min_max_rewards(group, without.weights())
    columns: tuple[tuple[float, Callable[[Features], float]], ...] = (
        (preference.cost, lambda features: features.dollars),
        (preference.latency, lambda features: features.seconds),
    )
    for weight, amount in columns:
        amounts = [amount(features) for features in group if not features.stopped]
        low, high = min((-value for value in amounts), default=0.0), max((-value for value in amounts), default=0.0)
        for index, features in enumerate(group):
            if features.correct and not features.stopped and high > low:
                rewards[index] += weight * (amount(features) - low) / (high - low)
    return rewards


def min_max(values: Sequence[float]) -> list[float]:
    """Values mapped linearly to 0 to 1; all 0 if they are equal."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    spread = high - low
    if not spread > 0:
        return [0.0] * len(values)
    return [min(1.0, (value - low) / spread) for value in values]


def well_formed(*, num_tool_calls: int, response: str, answer: str | None) -> bool:
    """True if a rollout passes the format filter: it called a tool or wrote something, and has an answer."""
    return (num_tool_calls > 0 or bool(response.strip())) and bool(answer and answer.strip())


def features_of_metadata(metadata: Mapping[str, Any], *, correct: bool) -> Features:
    """The features of a rollout by the metadata of its last sample, without those of a rollout that something stopped."""
    calls = Counter(call["alias"] for call in metadata.get("expert_calls", []))
    return Features(correct=correct, dollars=metadata.get("dollars", 0.0), seconds=metadata.get("seconds", 0.0), calls=calls)


def preference_score(features: Features, base: Features, preference: Preference) -> float:
    """The paper's measure of how well a rollout follows a preference (appendix L), relative to the base model on the same task.

    Call counts and accuracy enter as m / max(1, base's m), cost in cents and latency in seconds as base's m / max(1, m); the
    paper does not say in which units. Its score is the sum over tasks.
    """
    names = set(features.calls) | set(base.calls)
    score = sum(preference.tools.get(name, 0.0) * features.calls.get(name, 0) / max(1, base.calls.get(name, 0)) for name in names)
    score += preference.accuracy * features.correct / max(1, base.correct)
    score += preference.cost * CENTS * base.dollars / max(1.0, CENTS * features.dollars)
    return score + preference.latency * base.seconds / max(1.0, features.seconds)
