"""What other machines can reach: nothing that changes weights or runs code without a secret."""

import os
from urllib.parse import urlparse

from vime.config import Mode, ModelAPI, RunConfig
from vime.errors import Problem
from vime.processes.secret import MIN_CHARACTERS, VARIABLE, given_secret, is_loopback

OWN_SERVER_ARGS = {
    "host": "give cluster.host, which all parts of the run know",
    "api_key": f"would stand on a command line, and guards only some paths: set the environment variable {VARIABLE}",
}


def arguments(config: RunConfig) -> list[Problem]:
    """Neither servers nor routers are told another address, or a key of their own."""
    given = {f"serving.models.{name}.vllm_args": model.vllm_args for name, model in config.serving.models.items()}
    for name, model in config.serving.models.items():
        given |= {f"serving.models.{name}.groups.{group}.vllm_args": own.vllm_args for group, own in model.groups.items()}
    given["serving.router_args"] = config.serving.router_args
    return [
        Problem(key=f"{key}.{argument}", value="…" if argument.endswith("key") else value, remedy=OWN_SERVER_ARGS[name])
        for key, found in given.items()
        for argument, value in found.items()
        if (name := argument.replace("-", "_")) in OWN_SERVER_ARGS
    ]


def reachable(config: RunConfig) -> list[Problem]:
    """Beyond the loopback Ray asks for its token, and servers that others run for the trained model for a secret."""
    cluster, secret, problems = config.cluster, given_secret(), []
    if secret is not None and len(secret) < MIN_CHARACTERS:
        remedy = f"the environment variable has {len(secret)} characters: give at least {MIN_CHARACTERS}, at random"
        problems.append(Problem(key=VARIABLE, value="…", remedy=remedy))
    if not is_loopback(cluster.host):
        if cluster.ray_address is None:
            remedy = "the Ray of a single machine is reached by the loopback only: give 127.0.0.1, or cluster.ray_address"
            problems.append(Problem(key="cluster.host", value=cluster.host, remedy=remedy))
        elif os.environ.get("RAY_AUTH_MODE") != "token":
            remedy = (
                "without a token Ray runs anybody's code: start it by scripts/ray_up.sh, then source <(scripts/ray_up.sh env)"
            )
            problems.append(Problem(key="cluster.ray_address", value=cluster.ray_address, remedy=remedy))
    for name, model in config.serving.models.items():
        elsewhere = [url for url in model.urls if not is_loopback(urlparse(url).hostname or "")]
        if config.mode is Mode.train and model.trained and model.api is ModelAPI.tokens and elsewhere and secret is None:
            remedy = f"whoever reaches it can change its weights: start vime.serving.vllm_server with {VARIABLE}, set here too"
            problems.append(Problem(key=f"serving.models.{name}.urls", value=elsewhere[0], remedy=remedy))
    return problems
