"""Nothing that changes weights or runs code can be reached from other machines without a secret."""

import os
from urllib.parse import urlparse

from vime.config import Mode, ModelAPI, RunConfig
from vime.errors import Problem
from vime.processes.secret import MIN_CHARACTERS, VARIABLE, given_secret, is_loopback

OWN_SERVER_ARGS = {
    "host": "the address of servers is set for all parts of the run together: set cluster.host",
    "api_key": "a key on a command line is visible to others and protects only some paths: set the environment variable "
    "{VARIABLE}",
}


def arguments(config: RunConfig) -> list[Problem]:
    """Arguments of servers and routers contain neither an address nor a key."""
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
    """On other addresses than the loopback one, Ray needs a token, and running servers of the trained model need a secret."""
    cluster, secret, problems = config.cluster, given_secret(), []
    if secret is not None and len(secret) < MIN_CHARACTERS:
        remedy = f"the environment variable has {len(secret)} characters: use at least {MIN_CHARACTERS} random ones"
        problems.append(Problem(key=VARIABLE, value="…", remedy=remedy))
    if not is_loopback(cluster.host):
        if cluster.ray_address is None:
            remedy = (
                "a Ray cluster that the run starts listens on the loopback address only: use 127.0.0.1, or set "
                "cluster.ray_address"
            )
            problems.append(Problem(key="cluster.host", value=cluster.host, remedy=remedy))
        elif os.environ.get("RAY_AUTH_MODE") != "token":
            remedy = (
                "without a token Ray runs code of anybody who reaches it: start it with scripts/ray_up.sh, then source "
                "<(scripts/ray_up.sh env)"
            )
            problems.append(Problem(key="cluster.ray_address", value=cluster.ray_address, remedy=remedy))
    for name, model in config.serving.models.items():
        elsewhere = [url for url in model.urls if not is_loopback(urlparse(url).hostname or "")]
        if config.mode is Mode.train and model.trained and model.api is ModelAPI.tokens and elsewhere and secret is None:
            remedy = (
                f"anybody who reaches it could change its weights: start vime.inside_vllm.vllm_server with {VARIABLE} set, "
                "and set it here too"
            )
            problems.append(Problem(key=f"serving.models.{name}.urls", value=elsewhere[0], remedy=remedy))
    return problems
