"""The hooks that see a whole group, isolated: `method.group_reward` and `rollout.group_function`."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from vime.blame import blamed, users_traceback
from vime.config import RolloutConfig
from vime.rollout.context import Context
from vime.rollout.within import HookTimeout, within
from vime.types import Group, Prompt, Reward, Sampling, StopReason
from vime.workers.group_run import stopped_rollout
from vime.workers.isolation import check_samples, template_of
from vime.workers.own_verdict import adopt, check_length, set_reward, to_reward

logger = logging.getLogger(__name__)


async def score_group(
    hook: Callable[..., Awaitable[list[Reward]]], group: Group, *, context: Context, config: RolloutConfig
) -> None:
    """Sets the rewards of the rollouts in the baseline; if every attempt of the hook fails, they leave the baseline."""
    scored = [rollout for rollout in group.rollouts if rollout.counting.in_baseline]
    subgroup = replace(group, rollouts=scored)
    reason, message, traceback = StopReason.REWARD_RAISED, "", ""
    for _ in range(config.max_reward_retries + 1):
        try:
            found = await within(hook(context, subgroup), config.reward_timeout_seconds)
            rewards = [to_reward(reward) for reward in found]
            if len(rewards) != len(scored):
                raise ValueError(f"group_reward returned {len(rewards)} rewards for {len(scored)} rollouts")
            for rollout, reward in zip(scored, rewards):
                check_length(reward, rollout)
        except HookTimeout:
            reason, traceback = StopReason.REWARD_TIMEOUT, ""
            message = "group_reward ran longer than rollout.reward_timeout_seconds"
        except Exception as error:  # the boundary of a user's function: any failure costs this group only
            reason, message, traceback = StopReason.REWARD_RAISED, blamed(error), users_traceback(error)
            logger.warning("group_reward raised for prompt %d\n%s", group.prompt.index, traceback)
        else:
            for rollout, reward in zip(scored, rewards):
                for sample in rollout.samples:
                    sample.reward = None
                set_reward(rollout, reward)
            return
    for rollout in scored:
        rollout.stop_reason, rollout.error, rollout.traceback = reason, message, traceback
        rollout.status = rollout.counting.status


async def run_group_function(
    hook: Callable[..., Awaitable[Group]],
    prompt: Prompt,
    *,
    slot: int,
    num_rollouts: int,
    context: Context,
    config: RolloutConfig,
    sampling: Sampling,
) -> Group:
    """Runs the user's own group function and checks its samples like any other; if it fails, all of its rollouts have failed."""
    limit = config.generate_timeout_seconds + config.reward_timeout_seconds
    traceback = ""
    try:
        group: Any = await within(hook(context, prompt, num_rollouts), limit, clock=context.clock)
        for member, rollout in enumerate(group.rollouts):
            template = template_of(prompt, slot=slot, member=member, session=context.session_id)
            rollout.rollout_id, rollout.group_index = template.rollout_id, slot
            found = rollout.samples
            rollout.samples = check_samples(found, template, sampling=sampling) if found else []
            adopt(rollout)
        group.index = slot
        return group
    except HookTimeout:
        error = f"rollout.group_function ran longer than generate and reward may together ({limit:g} s)"
    except Exception as raised:  # the boundary of a user's function: any failure costs this group only
        error, traceback = blamed(raised), users_traceback(raised)
        logger.warning("rollout.group_function raised in slot %d\n%s", slot, traceback)
    failed = [stopped_rollout(slot, member, StopReason.GENERATE_RAISED, error) for member in range(num_rollouts)]
    for rollout in failed:
        rollout.traceback = traceback
    return Group(index=slot, prompt=prompt, rollouts=failed)
