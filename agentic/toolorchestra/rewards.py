"""Rewards of ToolOrchestra (arXiv 2511.21689, equation 2 and appendix L), of its public reproductions, and ours.

Pure functions on the rollouts of one group. Cost and latency are held as what they are, amounts that are never negative, and a
`Preference` has no negative weight: so no caller can turn a price into a bonus. The variants that did so as published are here
under names that say it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

ACCURACY, COST, LATENCY = "accuracy", "cost", "latency"
"""Names in slime-agentic's weights, beside those of the tools."""


class Variant(Enum):
    """Whose reward."""

    corrected = "corrected"
    """Ours: see `corrected`."""
    paper = "paper"
    """Equation 2: min-max over the group, times the preference, 0 when wrong."""
    slime_agentic = "slime_agentic"
    """The same with weights by name; what has no weight counts nothing."""
    slime_agentic_sign_error = "slime_agentic_sign_error"
    """With the weights it published: negative ones on cost and latency that are negated already, so it pays for both."""
    nvlabs_sign_error = "nvlabs_sign_error"
    """As the authors' code normalizes: cost and latency as they are, within the bounds of their negatives."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Features:
    """What one rollout did.

    Example: `Features(correct=True, dollars=0.02, seconds=8.5, calls={"search-1": 2, "answer-1": 1})`. Raises ValueError for an
    amount that is negative or not finite.
    """

    correct: bool
    dollars: float = 0.0
    seconds: float = 0.0
    calls: Mapping[str, int] = field(default_factory=dict)
    """Calls of each tool or expert by name."""
    stopped: bool = False
    """A limit or a failure cut it off: nobody knows what it would have cost, so its amounts are no lowest or highest of a group
    and earn nothing."""

    def __post_init__(self) -> None:
        for name, value in {"dollars": self.dollars, "seconds": self.seconds, **self.calls}.items():
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name}={value}: costs, times and counts are 0 or more")


@dataclass(frozen=True, kw_only=True, slots=True)
class Preference:
    """What a user cares about: weights from 0 to 1 (the paper's P), each for more of something good.

    Example: `Preference(accuracy=1.0, cost=0.3, latency=0.1, tools={"answer-2": 0.2})`; `cost` weighs being cheap, `latency`
    being quick. Raises ValueError for a weight outside 0 to 1.
    """

    accuracy: float = 1.0
    cost: float = 0.0
    latency: float = 0.0
    tools: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in {ACCURACY: self.accuracy, COST: self.cost, LATENCY: self.latency, **self.tools}.items():
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"the weight of {name} is {value}: give 0 to 1 (less cost and less time count as more)")

    def weights(self) -> dict[str, float]:
        """By name, as slime-agentic writes them."""
        return {**self.tools, ACCURACY: self.accuracy, COST: self.cost, LATENCY: self.latency}


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """The amounts at which half of what `corrected` gives for being cheap and quick is gone, and how much that is at most.

    Example: `Scale(dollars=0.05, seconds=30.0, share=0.3)`: a right answer is worth 0.7 to 1. Raises ValueError unless amounts
    are positive and 0 <= share < 1.
    """

    dollars: float = 0.05
    seconds: float = 30.0
    share: float = 0.3

    def __post_init__(self) -> None:
        if not (0 < self.dollars < math.inf and 0 < self.seconds < math.inf):
            raise ValueError(f"dollars={self.dollars}, seconds={self.seconds}: give amounts above 0")
        if not 0 <= self.share < 1:
            raise ValueError(f"share={self.share}: give 0 or more and less than 1, so that right stays above wrong")


PUBLISHED_WEIGHTS: Mapping[str, float] = {ACCURACY: 1.0, COST: -0.3, LATENCY: -0.1}
"""The weights in slime-agentic's preparation of evaluation data."""


def group_rewards(variant: Variant, group: Sequence[Features], preference: Preference, scale: Scale) -> list[float]:
    """One reward per rollout of a group, in its order."""
    if variant is Variant.corrected:
        return [corrected(features, preference, scale) for features in group]
    if variant is Variant.paper:
        return paper(group, preference)
    if variant is Variant.slime_agentic:
        return slime_agentic(group, preference.weights())
    if variant is Variant.slime_agentic_sign_error:
        return slime_agentic(group, PUBLISHED_WEIGHTS)
    return nvlabs_sign_error(group, preference)


def corrected(features: Features, preference: Preference, scale: Scale) -> float:
    """0 when wrong; when right 1, less at most `scale.share` for what it cost and for tools that are not preferred.

    It looks at no other rollout, so raising one's cost or latency raises nobody's reward; and it keeps the outcome where all are
    right, which min-max over the group would set to 0.
    """
    if not features.correct:
        return 0.0
    return (1 - scale.share) + scale.share * efficiency(features, preference, scale)


def efficiency(features: Features, preference: Preference, scale: Scale) -> float:
    """From 0 to 1: the preference's mean of cheapness, quickness and the share of calls that went to preferred tools.

    An amount x of scale s counts s / (s + x). 1 if the preference weighs none of the three.
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


def paper(group: Sequence[Features], preference: Preference) -> list[float]:
    """Equation 2: the preference times the features, each brought to 0-1 over the group (0 if it is constant); 0 when wrong."""
    return slime_agentic(group, preference.weights())


def slime_agentic(group: Sequence[Features], weights: Mapping[str, float]) -> list[float]:
    """The same for weights by name, of any sign as there; names without a weight count 0.

    Cost and latency are negated before they are normalized, so with a negative weight the dearest and slowest gets most. Rollouts
    that were stopped stand in the accuracy alone.
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
    """The paper's, but cost and latency enter as they are, within the minimum and maximum of their negatives: more costs more.

    The values are above 1: (x + max) / (max - min) for an amount x.
    """
    without = Preference(accuracy=preference.accuracy, tools=preference.tools)
    rewards = slime_agentic(group, without.weights())
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
    """Values brought to 0-1; all 0 if they are equal."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    spread = high - low
    if not spread > 0:
        return [0.0] * len(values)
    return [min(1.0, (value - low) / spread) for value in values]


def group_advantages(
    rewards: Sequence[float], *, kept: Sequence[bool], min_deviation: float = 0.1, clip: float = 3.0, unbiased: bool = False
) -> list[float | None]:
    """(r - mean) / (deviation + 1e-6) within +-`clip`, None for rollouts that are not trained.

    Not trained are all of a group whose deviation is `min_deviation` or less (homogeneity filter), and those that `kept` names
    False (format filter); both stand in mean and deviation. `unbiased` divides by n - 1, as the authors' code does; slime-agentic
    divides by n.
    """
    count = len(rewards)
    if count < 2:
        return [None] * count
    mean = sum(rewards) / count
    deviation = math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / (count - 1 if unbiased else count))
    if deviation <= min_deviation:
        return [None] * count
    scores = [max(-clip, min(clip, (reward - mean) / (deviation + 1e-6))) for reward in rewards]
    return [score if keep else None for score, keep in zip(scores, kept, strict=True)]


def well_formed(*, num_tool_calls: int, response: str, answer: str | None) -> bool:
    """The format filter: a rollout that called no tool and said nothing, or has no valid answer, is not trained."""
    return (num_tool_calls > 0 or bool(response.strip())) and bool(answer and answer.strip())


def preference_score(features: Features, base: Features, preference: Preference) -> float:
    """The paper's measure of how well a run follows a preference (appendix L), against the base model's run of the same task.

    Counts and accuracy: m / max(1, m of the base); cost and latency: m of the base / max(1, m). Add it up over the tasks.
    """
    names = set(features.calls) | set(base.calls)
    score = sum(preference.tools.get(name, 0.0) * features.calls.get(name, 0) / max(1, base.calls.get(name, 0)) for name in names)
    score += preference.accuracy * features.correct / max(1, base.correct)
    score += preference.cost * base.dollars / max(1.0, features.dollars)
    return score + preference.latency * base.seconds / max(1.0, features.seconds)
