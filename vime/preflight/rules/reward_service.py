"""The reward service: it is used, has an address and a key, and its limits fit those of the run."""

import os
from urllib.parse import urlparse

from vime.config import RewardServiceConfig, RunConfig
from vime.errors import Problem
from vime.preflight.rules.serving import VARIABLE, is_address

HOOK = "vime.reward_service.hook.reward"
LONGEST_WAIT_SECONDS = 5.0
"""Longest wait between two attempts (`vime.reward_service.reward_client`)."""


def is_asked(config: RunConfig) -> bool:
    """True if the reward of the run comes from the service."""
    return config.method.reward == HOOK


def complete(config: RunConfig) -> list[Problem]:
    """The hook has an address, which contains no key; without the hook there is no address."""
    service, problems = config.reward_service, []
    if not is_asked(config):
        if service.url is None:
            return []
        remedy = f"nothing calls this service: set method.reward={HOOK}, call that in your own reward, or remove this"
        return [] if _asked_by_own_function(config) else [Problem(key="reward_service.url", value=service.url, remedy=remedy)]
    if service.url is None:
        problems.append(
            Problem(
                key="reward_service.url", value="", remedy=f"{HOOK} needs the address of the service: use http://host:port/path"
            )
        )
    elif not is_address(service.url):
        problems.append(Problem(key="reward_service.url", value="…", remedy="is not an address: use http://host:port/path"))
    elif urlparse(service.url).username or urlparse(service.url).password:
        remedy = "contains a login, which would be logged: put the key into an environment variable, and its name into "
        problems.append(Problem(key="reward_service.url", value="…", remedy=f"{remedy}reward_service.api_key_variable"))
    variable = service.api_key_variable
    if variable is not None and not VARIABLE.fullmatch(variable):  # it may be the key itself: it is not shown
        remedy = "must be the name of an environment variable, in capitals, not the key itself: export the key, and use the name"
        problems.append(Problem(key="reward_service.api_key_variable", value="…", remedy=remedy))
    return problems


def times(config: RunConfig) -> list[Problem]:
    """All attempts at a request fit into the time limit of a reward, so that failures of the service are reported as such."""
    needed, limit = longest_seconds(config.reward_service), config.rollout.reward_timeout_seconds
    if not is_asked(config) or needed < limit:
        return []
    remedy = (
        f"a request to the reward service may take {needed:g} s with all its attempts (reward_service.request_timeout_seconds "
        "and "
        f"reward_service.max_retries): use more, or lower those"
    )
    return [Problem(key="rollout.reward_timeout_seconds", value=limit, remedy=remedy)]


def queue(config: RunConfig) -> list[Problem]:
    """The queue holds at least one full batch."""
    service = config.reward_service
    if not is_asked(config) or service.max_pending >= service.max_batch_size:
        return []
    remedy = f"must be at least reward_service.max_batch_size={service.max_batch_size}, or no batch could be filled"
    return [Problem(key="reward_service.max_pending", value=service.max_pending, remedy=remedy)]


def key_is_set(config: RunConfig) -> list[Problem]:
    """The environment of this machine has the key."""
    variable = config.reward_service.api_key_variable
    if not is_asked(config) or variable is None or not VARIABLE.fullmatch(variable) or os.environ.get(variable):
        return []
    remedy = f"this environment variable is not set: export {variable}=… before the run (on all nodes), or use null"
    return [Problem(key="reward_service.api_key_variable", value=variable, remedy=remedy)]


def longest_seconds(service: RewardServiceConfig) -> float:
    """Longest time that a rollout waits for its reward, unless the service asks for a pause."""
    waits = service.max_retries * LONGEST_WAIT_SECONDS
    return service.max_batch_wait_seconds + (service.max_retries + 1) * service.request_timeout_seconds + waits


def _asked_by_own_function(config: RunConfig) -> bool:
    """True if the reward is a function of the user, which may call the hook; rewards of the built-in methods do not."""
    reward = config.method.reward
    return reward is not None and not reward.startswith(("agentic.", "vime."))
