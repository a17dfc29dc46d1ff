"""Ids of rollouts, built from the group and the place in it, so that processes need no shared counter."""

ROLLOUTS_PER_GROUP = 1_000_000


def rollout_id_of(group_index: int, member: int) -> int:
    """The id of a group's rollout, unique within a run. Example: `rollout_id_of(7, 3) == 7_000_003`."""
    return group_index * ROLLOUTS_PER_GROUP + member


def member_of(rollout_id: int) -> int:
    """The place of a rollout in its group, from 0."""
    return rollout_id % ROLLOUTS_PER_GROUP
