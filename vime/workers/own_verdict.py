"""Stop reasons and rewards that `generate` itself sets on its samples.

slime's users set `status` and `reward` on samples, ours may set `stop_reason`; all are honoured, contradictions refused.
"""

import math
from typing import Any

from vime.errors import SampleError
from vime.types import COUNTS, Reward, Rollout, Sample, Status, StopReason

STOP_REASONS = {
    Status.COMPLETED: StopReason.ANSWERED,
    Status.TRUNCATED: StopReason.TOKEN_LIMIT,
    Status.ABORTED: StopReason.ABORTED,
    Status.FAILED: StopReason.GENERATE_RAISED,
}
"""The stop reason of a status if none is set; `pending` is the status of an untouched sample."""


def stop_reason_of(sample: Sample) -> StopReason | None:
    """The stop reason that a sample states, None if it states none.

    Raises `SampleError` for a status or stop reason that does not exist, and for two that contradict each other.
    """
    where = f"rollout {sample.rollout_id}"
    try:
        status = Status(sample.status)
    except ValueError as error:
        raise SampleError(f"{where}: {error}; there are {', '.join(Status)}") from error
    if sample.stop_reason is None:
        return STOP_REASONS.get(status)
    try:
        stop_reason = StopReason(sample.stop_reason)
    except ValueError as error:
        raise SampleError(f"{where}: {error}; there are {', '.join(StopReason)}") from error
    if status not in (Status.PENDING, COUNTS[stop_reason].status):
        raise SampleError(
            f"{where}: status={status.value} contradicts stop_reason={stop_reason.value}, whose status is "
            f"{COUNTS[stop_reason].status.value}: set one of them"
        )
    return stop_reason


def end_of(samples: list[Sample]) -> StopReason:
    """The stop reason of a rollout: that of its last sample, and `answered` if that has none.

    Raises `SampleError` if the last sample and another disagree on whether the rollout counts.
    """
    end = samples[-1].stop_reason or StopReason.ANSWERED
    for position, sample in enumerate(samples):
        if sample.stop_reason is not None and COUNTS[sample.stop_reason].trained != COUNTS[end].trained:
            raise SampleError(
                f"rollout {sample.rollout_id}: sample {position} of {len(samples)} ended with {sample.stop_reason.value}, "
                f"the last with {end.value}, and only one of these counts: leave a sample that failed out of what you return"
            )
    return end


def own_reward(given: list[Any]) -> Reward:
    """The reward of a rollout from those that `generate` has set on its samples: their mean, and each sample's own.

    Raises SampleError if one is None or not a finite number.
    """
    missing = [position for position, value in enumerate(given) if value is None]
    if missing:
        raise SampleError(
            f"generate set no reward on {len(missing)} of {len(given)} samples (the first is sample {missing[0]}), and "
            "method.reward=null: set sample.reward, or set method.reward"
        )
    rewards = [_number(value, position) for position, value in enumerate(given)]
    return Reward(score=math.fsum(rewards) / len(rewards), samples=rewards)


def _number(value: Any, position: int) -> float:
    try:
        return to_reward(value).score
    except (TypeError, ValueError) as error:
        raise SampleError(f"generate set the reward {value!r} on sample {position}: {error}; set a number") from error


def to_reward(value: Any) -> Reward:
    """A `Reward` of plain floats from the value that a hook returned or set.

    Raises TypeError if it is neither a number nor a Reward of numbers, ValueError if one of them is not finite.
    """
    given = value if isinstance(value, Reward) else Reward(score=value)
    metrics = {str(name): float(number) for name, number in given.metrics.items()}
    samples = None if given.samples is None else [float(number) for number in given.samples]
    reward = Reward(score=float(given.score), metrics=metrics, samples=samples)
    of_samples = {f"the reward of sample {position}": number for position, number in enumerate(samples or ())}
    for name, number in {"reward": reward.score, **reward.metrics, **of_samples}.items():
        if not math.isfinite(number):
            raise ValueError(f"{name} is {number}, not a finite number")
    return reward


def check_length(reward: Reward, rollout: Rollout) -> Reward:
    """The reward; raises ValueError if it names another number of samples than the rollout has."""
    if reward.samples is not None and len(reward.samples) != len(rollout.samples):
        raise ValueError(f"a reward for {len(reward.samples)} samples, and the rollout has {len(rollout.samples)}")
    return reward


def set_reward(rollout: Rollout, reward: Reward) -> None:
    """Sets the reward of a rollout and its samples; a reward set by `generate` stays unless the hook gave one per sample."""
    rollout.reward, rollout.metrics = reward.score, {**rollout.metrics, **reward.metrics}
    for position, sample in enumerate(rollout.samples):
        if reward.samples is not None:
            sample.reward = reward.samples[position]
        elif sample.reward is None:
            sample.reward = reward.score


def adopt(rollout: Rollout) -> None:
    """Completes a rollout that a user's function has made: unset fields are derived from its samples."""
    samples = rollout.samples
    if samples and rollout.stop_reason is StopReason.ABORTED:  # the default: nobody has said how it ended
        rollout.stop_reason = end_of(samples)
    rollout.status = rollout.counting.status
    given = [sample.reward for sample in samples]
    if rollout.reward == 0.0 and None not in given and given:
        set_reward(rollout, own_reward(given))
    set_reward(rollout, to_reward(rollout.reward))
