"""A user's advantages (`algorithm.advantage`): an exception or a wrong result ends the run with the name of the function."""

import math
from collections.abc import Mapping

from vime.algorithm.advantage import Advantages
from vime.algorithm.batch import AdvantageFunction
from vime.config import AlgorithmConfig
from vime.errors import HookError
from vime.hooks import load_named
from vime.types import Group

KEY = "algorithm.advantage"


def own_advantage(path: str) -> AdvantageFunction:
    """Loads the user's advantage function from `path` (`module.function` or `file.py:function`), and checks what it returns.

    The function that is returned raises HookError if the user's function raises, if its result is no dictionary by `rollout_id`,
    or if an advantage is not finite or not one number for a rollout or one for each of its samples.
    """
    hook = load_named(KEY, path)

    def checked(config: AlgorithmConfig, groups: list[Group]) -> Mapping[int, Advantages]:
        found = hook(config, groups)
        if not isinstance(found, Mapping):
            raise HookError(
                f"{KEY}={path} returned {type(found).__name__}: it must return a dictionary of advantages by rollout_id"
            )
        num_samples = {rollout.rollout_id: len(rollout.samples) for group in groups for rollout in group.rollouts}
        for rollout_id, value in found.items():
            if rollout_id not in num_samples:
                raise HookError(f"{KEY}={path} returned an advantage of rollout {rollout_id!r}, which is not in the batch")
            if isinstance(value, list) and len(value) != num_samples[rollout_id]:
                wanted = f"{len(value)} advantages for the {num_samples[rollout_id]} samples of rollout {rollout_id}"
                raise HookError(f"{KEY}={path} returned {wanted}")
            if not all(map(math.isfinite, value if isinstance(value, list) else [value])):
                raise HookError(f"{KEY}={path} returned the advantage {value} for rollout {rollout_id}: it must be finite")
        return found

    return checked
