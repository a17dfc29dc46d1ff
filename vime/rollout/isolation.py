"""One rollout, isolated: whatever a hook does costs this rollout and nothing else.

The two broad `except` clauses here are the boundaries around `generate` and `reward`; every outcome becomes a `StopReason`.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from vime.config import RolloutConfig
from vime.errors import SampleError, ServerError
from vime.rollout.context import Context, Sampling
from vime.types import Reward, Rollout, Sample, StopReason

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Hooks:
    """The loaded functions of one row of evaluation, or of training."""

    generate: Callable[..., Awaitable[Sample | list[Sample]]]
    reward: Callable[..., Awaitable[float | Reward]]


async def run_rollout(
    *, hooks: Hooks, config: RolloutConfig, make_context: Callable[[int], Context], template: Sample, sampling: Sampling
) -> Rollout:
    """Runs one rollout, again after an infrastructure failure at most `max_retries` times.

    `make_context(attempt)` gives each attempt a session of its own.
    """
    rollout = Rollout(rollout_id=template.rollout_id, group_index=template.group_index)
    for attempt in range(config.max_retries + 1):
        rollout = await _attempt(hooks=hooks, config=config, context=make_context(attempt), template=template, sampling=sampling)
        rollout.num_retries = attempt
        if not rollout.counting.retried:
            break
        logger.warning("rollout %d: %s: %s", rollout.rollout_id, rollout.stop_reason.value, rollout.error)
    return rollout


async def _attempt(*, hooks: Hooks, config: RolloutConfig, context: Context, template: Sample, sampling: Sampling) -> Rollout:
    rollout = Rollout(rollout_id=template.rollout_id, group_index=template.group_index)
    started = time.monotonic()
    await _generate(rollout, hooks=hooks, config=config, context=context, template=template, sampling=sampling)
    rollout.generation_seconds = time.monotonic() - started
    if rollout.counting.trained and rollout.samples:
        started = time.monotonic()
        await _score(rollout, hooks=hooks, config=config, context=context)
        rollout.reward_seconds = time.monotonic() - started
    rollout.status = rollout.counting.status
    for sample in rollout.samples:
        sample.status, sample.stop_reason, sample.reward = rollout.status, rollout.stop_reason, rollout.reward
    return rollout


async def _generate(
    rollout: Rollout, *, hooks: Hooks, config: RolloutConfig, context: Context, template: Sample, sampling: Sampling
) -> None:
    try:
        result = await asyncio.wait_for(hooks.generate(context, template, sampling), timeout=config.generate_timeout_seconds)
        samples = check_samples(result, template)
    except asyncio.TimeoutError:
        rollout.stop_reason = StopReason.TIME_LIMIT
        rollout.error = f"generate ran longer than rollout.generate_timeout_seconds={config.generate_timeout_seconds}"
    except ServerError as error:
        rollout.stop_reason, rollout.error = StopReason.SERVER_LOST, str(error)
    except Exception as error:  # the boundary of a user's function: any failure costs this rollout only
        logger.warning("generate raised in rollout %d", rollout.rollout_id, exc_info=True)
        rollout.stop_reason, rollout.error = StopReason.GENERATE_RAISED, describe(error)
    else:
        rollout.samples = samples
        rollout.stop_reason = samples[-1].stop_reason or StopReason.ANSWERED


async def _score(rollout: Rollout, *, hooks: Hooks, config: RolloutConfig, context: Context) -> None:
    try:
        reward = to_reward(await asyncio.wait_for(hooks.reward(context, rollout.samples), timeout=config.reward_timeout_seconds))
    except asyncio.TimeoutError:
        rollout.stop_reason = StopReason.REWARD_TIMEOUT
        rollout.error = f"reward ran longer than rollout.reward_timeout_seconds={config.reward_timeout_seconds}"
    except Exception as error:  # the boundary of a user's function: any failure costs this rollout only
        logger.warning("reward raised in rollout %d", rollout.rollout_id, exc_info=True)
        rollout.stop_reason, rollout.error = StopReason.REWARD_RAISED, describe(error)
    else:
        rollout.reward, rollout.metrics = reward.score, reward.metrics


def describe(error: BaseException) -> str:
    """One line that names an exception."""
    return f"{type(error).__name__}: {error}"


def to_reward(value: Any) -> Reward:
    """A `Reward` from what a reward hook returned.

    Raises TypeError if it is neither a number nor a Reward, ValueError if it is not finite.
    """
    reward = value if isinstance(value, Reward) else Reward(score=float(value))
    if reward.score != reward.score or reward.score in (float("inf"), float("-inf")):
        raise ValueError(f"reward is {reward.score}, not a finite number")
    return reward


def check_samples(result: Any, template: Sample) -> list[Sample]:
    """The samples that `generate` returned, validated and stamped with the rollout's identity.

    Raises `SampleError` if there are none or one breaks its contract.
    """
    samples = result if isinstance(result, list) else [result]
    if not samples or not all(isinstance(sample, Sample) for sample in samples):
        raise SampleError(f"rollout {template.rollout_id}: generate returned {type(result).__name__}, not samples")
    for position, sample in enumerate(samples):
        sample.group_index, sample.rollout_id = template.group_index, template.rollout_id
        sample.index, sample.session_id, sample.label = position, template.session_id, template.label
        sample.validate()
    return samples
