"""A reward service: whether it is asked, where it is, its key, and that its limits fit into one another."""

import os
from urllib.parse import urlparse

from vime.config import RewardServiceConfig, RunConfig
from vime.errors import Problem
from vime.preflight.rules.serving import VARIABLE, is_address

HOOK = "vime.reward_service.hook.reward"
LONGEST_WAIT_SECONDS = 5.0
"""Between two attempts, see `vime.reward_service.client`."""


def is_asked(config: RunConfig) -> bool:
    """Whether the run's reward is that of a service."""
    return config.method.reward == HOOK


def complete(config: RunConfig) -> list[Problem]:
    """The hook has an address, which holds no key, and settings are read."""
    service, problems = config.reward_service, []
    if not is_asked(config):
        if service.url is None:
            return []
        remedy = f"nothing asks this service: give method.reward={HOOK} (a function of your own may call that), or leave this out"
        return [] if _asked_by_own_function(config) else [Problem(key="reward_service.url", value=service.url, remedy=remedy)]
    if service.url is None:
        problems.append(Problem(key="reward_service.url", value="", remedy=f"{HOOK} asks a service: give its http address"))
    elif not is_address(service.url):
        problems.append(Problem(key="reward_service.url", value="…", remedy="is not an address: give http://host:port/path"))
    elif urlparse(service.url).username or urlparse(service.url).password:
        remedy = "holds a login, which would be logged: put the key into an environment variable, and name that in "
        problems.append(Problem(key="reward_service.url", value="…", remedy=f"{remedy}reward_service.api_key_variable"))
    variable = service.api_key_variable
    if variable is not None and not VARIABLE.fullmatch(variable):  # it may be the key itself: it is not shown
        remedy = "is the name of an environment variable, in capitals, not the key: export it, and give its name"
        problems.append(Problem(key="reward_service.api_key_variable", value="…", remedy=remedy))
    return problems


def times(config: RunConfig) -> list[Problem]:
    """All attempts at a request fit into the time of a reward, so that the service's own failure is what is reported."""
    needed, limit = longest_seconds(config.reward_service), config.rollout.reward_timeout_seconds
    if not is_asked(config) or needed < limit:
        return []
    remedy = (
        f"a request to the reward service may take {needed:g} s with all its attempts (reward_service.request_timeout_seconds, "
        f"max_retries): give more than that, or lower those"
    )
    return [Problem(key="rollout.reward_timeout_seconds", value=limit, remedy=remedy)]


def queue(config: RunConfig) -> list[Problem]:
    """A batch can be filled."""
    service = config.reward_service
    if not is_asked(config) or service.max_pending >= service.max_batch_size:
        return []
    remedy = f"no batch of reward_service.max_batch_size={service.max_batch_size} could be filled: give at least that"
    return [Problem(key="reward_service.max_pending", value=service.max_pending, remedy=remedy)]


def key_is_set(config: RunConfig) -> list[Problem]:
    """The key is in the environment (of this machine)."""
    variable = config.reward_service.api_key_variable
    if not is_asked(config) or variable is None or not VARIABLE.fullmatch(variable) or os.environ.get(variable):
        return []
    remedy = f"this environment variable is not set: export {variable}=… before the run (on all nodes), or give null"
    return [Problem(key="reward_service.api_key_variable", value=variable, remedy=remedy)]


def longest_seconds(service: RewardServiceConfig) -> float:
    """How long a rollout may wait for its reward while the service asks for no pause."""
    waits = service.max_retries * LONGEST_WAIT_SECONDS
    return service.max_batch_wait_seconds + (service.max_retries + 1) * service.request_timeout_seconds + waits


def _asked_by_own_function(config: RunConfig) -> bool:
    """A function of the user may call the hook; those of the methods here do not."""
    reward = config.method.reward
    return reward is not None and not reward.startswith(("agentic.", "vime."))
