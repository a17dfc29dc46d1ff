"""Runs one rollout in isolation: a failing hook costs this rollout and nothing else.

The broad `except` clauses here are the boundaries around a user's functions; every outcome becomes a `StopReason`.
"""

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from jinja2 import TemplateError

from vime.blame import blamed, users_traceback
from vime.config import RolloutConfig
from vime.errors import (
    BadRequestError,
    ConfigError,
    ContextFullError,
    MalformedError,
    RewardServiceError,
    RewardServiceTimeout,
    SampleError,
    SandboxError,
    ServerError,
    ToolLimitError,
)
from vime.rollout.context import Context, Sampling
from vime.rollout.within import HookTimeout, within
from vime.types import COUNTS, Prompt, Reward, Rollout, Sample, Status, StopReason, rollout_id_of
from vime.workers.own_verdict import check_length, end_of, own_reward, set_reward, stop_reason_of, to_reward

logger = logging.getLogger(__name__)

GOES_ON = (StopReason.SERVER_LOST, StopReason.SANDBOX_CRASHED)
"""Failures after which the next attempt reuses the turns of this one. After an error of the hook it does not, since the same
turns would lead to the same error."""


NOTHING_RECORDED = Sampling(temperature=1.0, top_p=1.0)
CONTEXT_FULL = "context_full"
"""Counts rollouts that ended because the model's context had no room for another reply."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hooks:
    """The loaded hooks for training, or for one row of an evaluation."""

    generate: Callable[..., Awaitable[Sample | list[Sample]]]
    reward: Callable[..., Awaitable[float | Reward]] | None
    """The reward hook; None if `generate` sets the rewards itself."""


async def run_rollout(
    *, hooks: Hooks, config: RolloutConfig, make_context: Callable[[int], Context], template: Sample, sampling: Sampling
) -> Rollout:
    """Runs one rollout: generation, again after an infrastructure failure at most `max_retries` times, then its reward.

    `make_context(attempt)` gives each attempt a session of its own; trace and trajectory are the rollout's, the same for all.
    """
    rollout, context = Rollout(rollout_id=template.rollout_id, group_index=template.group_index), make_context(0)
    for attempt in range(config.max_retries + 1):
        if attempt > 0:
            logger.warning("rollout %d: %s: %s", rollout.rollout_id, rollout.stop_reason.value, rollout.error)
            context.trajectory.start_again(keeps_replies=rollout.stop_reason in GOES_ON)
            context.trace.start_again()
            context = make_context(attempt)
        rollout = await _generate(hooks=hooks, config=config, context=context, template=template, sampling=sampling)
        rollout.num_retries = attempt
        if not rollout.counting.retried:
            break
    if rollout.counting.trained and rollout.samples and not rollout.error:  # half a result is not judged: it scores 0
        await _score(rollout, hooks=hooks, config=config, context=context)
    rollout.status = rollout.counting.status
    for sample in rollout.samples:
        sample.status, sample.stop_reason = rollout.status, rollout.stop_reason
        if sample.reward is None or not rollout.counting.trained:
            sample.reward = rollout.reward
    trace = context.trace
    rollout.seconds, rollout.counts, rollout.spans = dict(trace.seconds), dict(trace.counts), trace.spans
    return rollout


async def _generate(*, hooks: Hooks, config: RolloutConfig, context: Context, template: Sample, sampling: Sampling) -> Rollout:
    rollout = Rollout(rollout_id=template.rollout_id, group_index=template.group_index)
    started = time.monotonic()
    try:
        call = hooks.generate(context, unspoilt(template), sampling)
        result = await within(call, config.generate_timeout_seconds, clock=context.clock)
        samples = check_samples(result, template, without_tokens=context.evaluation, sampling=sampling)
        end = end_of(samples)
    except HookTimeout:
        rollout.stop_reason = StopReason.TIME_LIMIT
        rollout.error = f"generate ran longer than rollout.generate_timeout_seconds={config.generate_timeout_seconds}"
    except (BadRequestError, TemplateError) as error:  # the same request would be refused again
        if isinstance(error, ContextFullError) and _is_agents(error.model, context):
            rollout.stop_reason, rollout.error = StopReason.TOKEN_LIMIT, str(error)
            context.trace.count(CONTEXT_FULL)
        else:
            rollout.stop_reason = StopReason.REQUEST_REFUSED
            _blame(rollout, "generate", error)
    except MalformedError as error:
        rollout.stop_reason, rollout.error = StopReason.MALFORMED, str(error)
    except ToolLimitError as error:
        rollout.stop_reason, rollout.error = StopReason.TURN_LIMIT, str(error)
    except ServerError as error:
        rollout.stop_reason, rollout.error = StopReason.SERVER_LOST, str(error)
    except SandboxError as error:
        rollout.stop_reason, rollout.error = StopReason.SANDBOX_CRASHED, str(error)
    except ConfigError:  # no other rollout can do better: the run ends
        raise
    except Exception as error:  # the boundary of a user's function: any failure costs this rollout only
        rollout.stop_reason = StopReason.GENERATE_RAISED
        _blame(rollout, "generate", error)
    else:
        rollout.stop_reason = end
        if rollout.counting.trained:
            rollout.samples = samples
        else:
            rollout.error = f"generate says so itself (status={samples[-1].status.value}, stop_reason={end.value})"
    rollout.generation_seconds = time.monotonic() - started
    if rollout.error:
        _keep_what_was_sampled(rollout, context, template)
    return rollout


def _is_agents(model: str, context: Context) -> bool:
    """True if a model is the agent's own, trained or a baseline in its place; another one's limits are not the agent's."""
    actor = context.models.get("actor")
    return actor is None or model in ("", actor.name)


def _blame(rollout: Rollout, hook: str, error: Exception) -> None:
    """Notes a hook's error, and its place, for the rollout's line and the worker's log."""
    rollout.error, rollout.traceback = blamed(error), users_traceback(error)
    logger.warning("%s raised in rollout %d\n%s", hook, rollout.rollout_id, rollout.traceback)


def _keep_what_was_sampled(rollout: Rollout, context: Context, template: Sample) -> None:
    """Builds samples of the tokens that were sampled before `generate` failed.

    A rollout that ran out of time or tokens, or whose agent failed because of its model's reply, is trained on them. For other
    failures, and in evaluations, whose hooks read whole results only, they are only kept for readers.
    """
    is_trained = rollout.counting.trained and not context.evaluation
    found = context.trajectory.samples(unspoilt(template))
    try:
        found = check_samples(found, template) if found else []
    except SampleError as error:  # a logprob that is not finite, say, of which `generate` could not be told any more
        found = []
        if is_trained:
            rollout.stop_reason, rollout.error = StopReason.GENERATE_RAISED, blamed(error)
    if is_trained:
        rollout.samples = found
    else:
        rollout.unfinished = found


async def _score(rollout: Rollout, *, hooks: Hooks, config: RolloutConfig, context: Context) -> None:
    """Sets the reward; a reward hook that fails is called again for the same samples, at most `max_reward_retries` times.

    Where `generate` has set the rewards of all samples, the hook is not called.
    """
    reason, rollout_ended = StopReason.REWARD_RAISED, rollout.stop_reason
    given, started = [sample.reward for sample in rollout.samples], time.monotonic()
    for attempt in range(config.max_reward_retries + 1):
        if attempt > 0:
            context.trace.count("reward_retries")
        rollout.traceback = ""
        try:
            if hooks.reward is None or None not in given:
                reward = own_reward(given)
            else:
                with context.trace.span("reward", kind="reward"):
                    value = await within(hooks.reward(context, rollout.samples), config.reward_timeout_seconds)
                reward = check_length(to_reward(value), rollout)
        except HookTimeout:
            reason = StopReason.REWARD_TIMEOUT
            rollout.error = f"reward ran longer than rollout.reward_timeout_seconds={config.reward_timeout_seconds}"
        except RewardServiceError as error:
            late = isinstance(error, RewardServiceTimeout)
            reason, rollout.error = StopReason.REWARD_TIMEOUT if late else StopReason.REWARD_RAISED, str(error)
        except Exception as error:  # the boundary of a user's function: any failure costs this rollout only
            reason = StopReason.REWARD_RAISED
            _blame(rollout, "reward", error)
        else:
            set_reward(rollout, reward)
            reason, rollout.error = rollout_ended, ""
            break
    rollout.stop_reason = reason
    rollout.reward_seconds = time.monotonic() - started


def template_of(prompt: Prompt, *, slot: int, member: int, session: str) -> Sample:
    """The sample that `generate` is given: the rollout's prompt and identity."""
    return Sample(
        prompt=prompt.messages,
        label=prompt.ground_truth,
        metadata=prompt.metadata,
        group_index=slot,
        rollout_id=rollout_id_of(slot, member),
        session_id=session,
    )


def unspoilt(template: Sample) -> Sample:
    """A copy of the template for one attempt, so that changes by a failed attempt do not reach the next."""
    lists: dict[str, Any] = {"tokens": [], "loss_mask": [], "rollout_log_probs": [], "weight_versions": []}
    return replace(template, metadata=dict(template.metadata), **lists)


def check_samples(
    result: Any, template: Sample, *, without_tokens: bool = False, sampling: Sampling | None = None
) -> list[Sample]:
    """Validates the samples that `generate` returned, converts them to columns, and gives them the rollout's identity.

    Raises `SampleError` if there are none or one breaks its contract, or lacks what `sampling` records. In an evaluation samples
    may be `without_tokens`, because an endpoint with a chat API does not show them, and nothing is recorded.
    """
    samples = result if isinstance(result, list) else [result]
    if not samples or not all(isinstance(sample, Sample) for sample in samples):
        raise SampleError(f"rollout {template.rollout_id}: generate returned {type(result).__name__}, not samples")
    for position, sample in enumerate(samples):
        sample.group_index, sample.rollout_id = template.group_index, template.rollout_id
        sample.index, sample.session_id, sample.label = position, template.session_id, template.label
        sample.stop_reason, sample.status = stop_reason_of(sample), Status(sample.status)
        sample.to_columns()
        is_trained = sample.stop_reason is None or COUNTS[sample.stop_reason].trained
        if is_trained and (sample.tokens or not without_tokens):
            recorded = sampling or NOTHING_RECORDED
            sample.validate(num_logprobs=recorded.num_logprobs, routed_experts=recorded.routed_experts)
    return samples
