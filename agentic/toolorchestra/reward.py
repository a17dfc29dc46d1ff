"""Scores a rollout's outcome, and computes the rewards of a group with the variant of `method.shaping`."""

from collections import Counter
from dataclasses import replace
from statistics import pstdev

from agentic.toolorchestra.config import ToolOrchestraConfig
from agentic.toolorchestra.outcome import answer_is_right
from agentic.toolorchestra.rewards import Features, Preference, group_rewards, well_formed
from vime.grading.judge import Judge
from vime.rollout.context import Context
from vime.types import Group, Reward, Rollout, Sample, StopReason

ACCOUNT = "expert_calls"
"""Key in the metadata of every rollout that was not stopped."""
STOPPED = (StopReason.TIME_LIMIT, StopReason.TURN_LIMIT, StopReason.TOKEN_LIMIT)
"""Stop reasons of rollouts that would have cost more if they had gone on."""
HOMOGENEOUS, ILL_FORMED = "homogeneous", "ill_formed"
"""Metrics of a rollout: 1 if the filter of this name leaves it out of training."""


async def reward(context: Context, samples: list[Sample]) -> Reward:
    """1 if the customer's task is solved, or if the answer is correct word for word or by the judge's verdict; otherwise 0."""
    metadata = samples[-1].metadata
    if metadata["category"] == "func_call":
        solved = float(metadata["episode_reward"] > 0)
        return Reward(score=solved, metrics={"strict": solved, "judged": 0.0})
    answer, labels = metadata["final_output"], samples[-1].label
    right, judged = any(answer_is_right(answer, label) for label in labels), False
    shaping = ToolOrchestraConfig.of(context.config).shaping
    if not right and answer.strip() and shaping.judge is not None:
        settings = replace(shaping.judge_config(shaping.judge), keep_verdicts=not context.config.deterministic)
        judge = Judge(context, settings)
        judged = True
        right = bool(await judge.decide(question=metadata["question"], prediction=answer, gold=labels))
    return Reward(score=float(right), metrics={"strict": float(right), "judged": float(judged)})


async def group_reward(context: Context, group: Group) -> list[Reward]:
    """The rewards of a group. Samples that a filter leaves out of training are marked and stay in the group's baseline."""
    method, rollouts = ToolOrchestraConfig.of(context.config), group.rollouts
    shaping = method.shaping
    preference = preference_of(method, group)
    rewards = group_rewards(shaping.variant, [features_of(rollout) for rollout in rollouts], preference, shaping.scale())
    homogeneous = len(rewards) < 2 or pstdev(rewards) <= shaping.min_deviation
    found = []
    for rollout, score in zip(rollouts, rewards, strict=True):
        ill_formed = shaping.format_filter and not _is_well_formed(rollout)
        for sample in rollout.samples:
            sample.remove_sample = homogeneous or ill_formed  # anew: a group that got new rollouts is scored again
        metrics = {HOMOGENEOUS: float(homogeneous), ILL_FORMED: float(ill_formed)}
        found.append(Reward(score=score, metrics=metrics))
    return found


def features_of(rollout: Rollout) -> Features:
    """The features of a rollout; if a limit stopped it, its costs are not compared with those of others."""
    metadata = rollout.samples[-1].metadata if rollout.samples else {}
    correct = rollout.metrics.get("strict", 0.0) > 0
    if ACCOUNT not in metadata:
        return Features(correct=correct, stopped=True)
    calls = Counter(call["alias"] for call in metadata[ACCOUNT])
    stopped = rollout.stop_reason in STOPPED
    return Features(correct=correct, dollars=metadata["dollars"], seconds=metadata["seconds"], calls=calls, stopped=stopped)


def preference_of(method: ToolOrchestraConfig, group: Group) -> Preference:
    """The row's preference, or else that of the configuration. Raises ValueError for a weight outside 0 to 1."""
    own = group.prompt.metadata.get("preference")
    return Preference(**own) if own else method.preference.preference()


def _is_well_formed(rollout: Rollout) -> bool:
    metadata = rollout.samples[-1].metadata if rollout.samples else {}
    if ACCOUNT not in metadata:
        return False
    answer = metadata["final_output"] if metadata["category"] == "qa" else metadata["response"] or metadata["ending"]
    return well_formed(num_tool_calls=metadata["num_calls"], response=metadata["response"], answer=answer)
