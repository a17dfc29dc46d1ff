"""Advantages of rollouts within their group, by identity: a missing or failed member never changes the baseline of another.

GRPO (arXiv 2402.03300, section 4.1.2): A_i = (R_i - mean(R)) / std(R) over the rollouts of a prompt; without the division
it is Dr. GRPO's (arXiv 2503.20783). RLOO (arXiv 2402.14740, section 3): A_i = R_i - mean of the other rewards.
MaxRL (arXiv 2602.02710): A_i = (R_i - mean(R)) / mean(R), for rewards that are not negative.
REINFORCE++ (arXiv 2501.03262): A_i = R_i, whitened over the batch later. RAE (SPIRAL, arXiv 2506.24119, section 4): A_i = R_i - b
with a running mean b of each seat. Only rollouts whose stop reason counts are part of the baseline (`vime.types.COUNTS`).
"""

from collections.abc import Iterable
from dataclasses import replace
from statistics import fmean, stdev

from vime.config import AlgorithmConfig, Baseline, Comparison, Normalization
from vime.errors import HookError
from vime.types import Group, Rollout

EPSILON = 1e-6
Advantages = float | list[float]
"""Advantage of one rollout for all its samples, or a list with one for each sample, in their order."""


Running = dict[str, float]
"""Running baselines by data set and seat, for example `{"train/white": 0.4}`."""


def group_advantages(config: AlgorithmConfig, groups: list[Group], running: Running | None = None) -> dict[int, Advantages]:
    """The advantage of every trained rollout by `rollout_id`, with one for each sample where their rewards differ.

    With a baseline of the group, advantages are zero in a group of one rollout and in a group whose rewards are all equal.
    `running` are the running baselines, which move on. Raises HookError for a negative reward with `normalization=mean`.
    """
    advantages: dict[int, Advantages] = {}
    for group in groups:
        counted = [rollout for rollout in group.rollouts if rollout.counting.in_baseline]
        if config.comparison is Comparison.seat:
            found = _by_seat(config, group, counted, running)
        else:
            found = _compare(config, group, counted, running)
        trained = {rollout.rollout_id for rollout in counted if rollout.counting.trained}
        assert not trained & set(advantages), f"rollouts {sorted(trained & set(advantages))} are in two groups"
        advantages |= {rollout_id: value for rollout_id, value in found.items() if rollout_id in trained}
    return advantages


def compare(config: AlgorithmConfig, rewards: dict[int, float]) -> dict[int, float]:
    """Advantages from the rewards of one group; the result does not depend on their order, down to the last bit.

    Example: `{3: 1.0, 5: 0.0, 6: 0.0}` gives `{3: 1.0, 5: -0.5, 6: -0.5}` with `baseline=leave_one_out normalization=none`.
    """
    if config.baseline is Baseline.none:
        return dict(rewards)
    if len(set(rewards.values())) <= 1:
        return dict.fromkeys(rewards, 0.0)
    number, mean = len(rewards), fmean(rewards.values())
    to_others = number / (number - 1) if config.baseline is Baseline.leave_one_out else 1.0
    scale = divisor(config, rewards, stdev(rewards.values()))
    return {rollout_id: (reward - mean) * to_others / scale for rollout_id, reward in rewards.items()}


def divisor(config: AlgorithmConfig, rewards: dict[int, float], deviation: float) -> float:
    """The divisor of the differences to the baseline: the deviation or the mean of the rewards of a group, or 1."""
    if config.normalization is Normalization.mean:
        return fmean(rewards.values())
    return deviation + EPSILON if config.normalization is Normalization.std else 1.0


def _by_seat(config: AlgorithmConfig, group: Group, rollouts: list[Rollout], running: Running | None) -> dict[int, Advantages]:
    """Advantages of the samples of each rollout, compared with those of the same seat."""
    found: dict[int, dict[int, float]] = {rollout.rollout_id: {} for rollout in rollouts}
    seats = dict.fromkeys(sample.seat for rollout in rollouts for sample in rollout.samples)
    for seat in seats:
        within = [_of_seat(rollout, seat) for rollout in rollouts]
        parts = [part for part in within if part.samples]
        if seat in config.nested_seats:
            advantages: dict[int, Advantages] = {}
            for part in parts:
                advantages |= _nested(config, part)
        else:
            advantages = _compare(config, group, parts, running)
        for part in parts:
            value, places = advantages[part.rollout_id], [sample.order for sample in part.samples]
            values = value if isinstance(value, list) else [value] * len(places)
            found[part.rollout_id] |= dict(zip(places, values, strict=True))
    return {rollout_id: [values[place] for place in sorted(values)] for rollout_id, values in found.items()}


def _of_seat(rollout: Rollout, seat: str) -> Rollout:
    """A rollout with the samples of one seat, whose mean reward is its own; `order` is their place in the whole rollout."""
    samples = [replace(each, order=place) for place, each in enumerate(rollout.samples) if each.seat == seat]
    rewards = [rollout.reward if each.reward is None else each.reward for each in samples if not each.remove_sample]
    return replace(rollout, samples=samples, reward=fmean(rewards) if rewards else rollout.reward)


def _nested(config: AlgorithmConfig, rollout: Rollout) -> dict[int, Advantages]:
    """Advantages of the samples of a seat that are compared with one another."""
    rewards = {
        place: rollout.reward if sample.reward is None else sample.reward
        for place, sample in enumerate(rollout.samples)
        if not sample.remove_sample
    }
    _check_divisible(config, rewards)
    found = compare(config, rewards) if len(rewards) > 1 else dict.fromkeys(rewards, 0.0)
    return {rollout.rollout_id: [found.get(place, 0.0) for place in range(len(rollout.samples))]}


def _compare(config: AlgorithmConfig, group: Group, rollouts: list[Rollout], running: Running | None) -> dict[int, Advantages]:
    """Advantages of rollouts, or of their parts of one seat, against the group or against the running baseline."""
    if config.baseline is not Baseline.running:
        return _compare_group(config, rollouts)
    assert running is not None, "an algorithm keeps the running baselines"
    seat = rollouts[0].samples[0].seat if config.comparison is Comparison.seat and rollouts else ""
    return _against_running(config, rollouts, running, key=f"{group.prompt.dataset}/{seat}")


def _against_running(
    config: AlgorithmConfig, rollouts: Iterable[Rollout], running: Running, *, key: str
) -> dict[int, Advantages]:
    """Rewards minus the running baseline before each of them, so that none is part of its own; it begins at 0."""
    found: dict[int, Advantages] = {}
    for rollout in sorted(rollouts, key=lambda rollout: rollout.rollout_id):
        reward, differences = shaped_reward(config, rollout), reward_differences(rollout)
        before = running.get(key, 0.0)
        advantage = reward - before
        running[key] = config.baseline_decay * before + (1 - config.baseline_decay) * reward
        found[rollout.rollout_id] = [advantage + each for each in differences] if any(differences) else advantage
    return found


def _compare_group(config: AlgorithmConfig, rollouts: list[Rollout]) -> dict[int, Advantages]:
    """Advantages of the rollouts of one group, by identity.

    The advantage of a sample differs from that of its rollout by as much as their rewards do, on the same scale. The deviation of
    the group is then over all samples, and every rollout has equal weight.
    """
    rewards = {rollout.rollout_id: shaped_reward(config, rollout) for rollout in rollouts}
    _check_divisible(config, rewards)
    differences = {rollout.rollout_id: reward_differences(rollout) for rollout in rollouts}
    if not any(map(any, differences.values())):
        return {**compare(config, rewards)}
    if config.baseline is not Baseline.none and len(rollouts) < 2:
        return dict.fromkeys(rewards, 0.0)
    found, scale = compare(replace(config, normalization=Normalization.none), rewards), 1.0
    if config.baseline is not Baseline.none:
        mean = fmean(rewards.values())
        squares = [fmean((rewards[key] + each - mean) ** 2 for each in differences[key] or [0.0]) for key in rewards]
        scale = divisor(config, rewards, (sum(squares) / (len(squares) - 1)) ** 0.5)
    if not scale:  # all rewards of rollouts are 0, and MaxRL learns from successes alone
        return {key: [0.0] * len(differences[key]) for key in rewards}
    return {key: [(found[key] + each) / scale for each in differences[key]] for key in rewards}


def _check_divisible(config: AlgorithmConfig, rewards: dict[int, float]) -> None:
    """Raises HookError if `normalization=mean` is to divide by the mean of negative rewards."""
    wrong = [rollout_id for rollout_id, reward in rewards.items() if reward < 0]
    if wrong and config.normalization is Normalization.mean:
        remedy = "give rewards of at least 0, or use algorithm.normalization=std"
        found = f"rollout {wrong[0]} has the reward {rewards[wrong[0]]:g}"
        raise HookError(f"algorithm.normalization=mean divides by the mean reward of a group, and {found}: {remedy}")


def reward_differences(rollout: Rollout) -> list[float]:
    """The difference between the reward of each sample and that of its rollout; 0 for samples that are not trained."""
    kept = [None if sample.remove_sample else sample.reward for sample in rollout.samples]
    return [0.0 if reward is None else reward - rollout.reward for reward in kept]


def shaped_reward(config: AlgorithmConfig, rollout: Rollout) -> float:
    """The reward minus the penalty for its length (DAPO's soft overlong punishment, arXiv 2503.14476, equation 13)."""
    if config.overlong_max_tokens is None:
        return rollout.reward
    over = rollout.num_response_tokens - (config.overlong_max_tokens - config.overlong_buffer_tokens)
    if over <= 0:
        return rollout.reward
    return rollout.reward - (min(over / config.overlong_buffer_tokens, 1.0) if config.overlong_buffer_tokens else 1.0)


def has_signal(group: Group) -> bool:
    """True if the rewards of a group differ, among its rollouts or among the samples of one of them."""
    counted = [rollout for rollout in group.rollouts if rollout.counting.in_baseline]
    return len({rollout.reward for rollout in counted}) > 1 or any(any(reward_differences(rollout)) for rollout in counted)
