"""Served models: which one is trained, their ports, addresses, groups and router, and external endpoints."""

import re
from importlib.util import find_spec
from urllib.parse import urlparse

from vime.cluster.placement import server_groups, takes_turns
from vime.config import AlgorithmName, ChatConfig, Mode, ModelAPI, RunConfig, ServedModelConfig, ServerRole
from vime.errors import Problem
from vime.preflight.rules.model_shape import scaling_problems

TRAINED_NAME = "actor"
"""Name of the trained model in `serving.models`."""
VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
LOWEST_PORT, HIGHEST_PORT = 1024, 65535
ROUTER_POLICIES = (
    *("consistent_hash", "cache_aware", "kv_aware", "power_of_two", "random", "round_robin", "sticky_least_loaded"),
)


def one_trained(config: RunConfig) -> list[Problem]:
    """Exactly one served model is the trained one, called actor, and it starts from the trainer's checkpoint."""
    if config.algorithm.name is AlgorithmName.sft:
        return []
    models, problems = config.serving.models, []
    trained = [name for name, model in models.items() if model.trained]
    if not trained:
        remedy = (
            f"no served model is trained (available: {', '.join(models) or 'none'}): set "
            f"serving.models.{TRAINED_NAME}.trained=true"
        )
        problems.append(Problem(key="serving.models", value=", ".join(models), remedy=remedy))
    elif len(trained) > 1:
        remedy = f"{len(trained)} models have trained=true: keep it for {TRAINED_NAME} only"
        problems.append(Problem(key="serving.models", value=", ".join(trained), remedy=remedy))
    elif trained != [TRAINED_NAME]:
        remedy = f"the trained model must have the name {TRAINED_NAME}: rename it"
        problems.append(Problem(key="serving.models", value=trained[0], remedy=remedy))
    for name in trained:
        if models[name].checkpoint not in (None, config.model.checkpoint):
            key, remedy = f"serving.models.{name}.checkpoint", f"the trained model is model.checkpoint={config.model.checkpoint}"
            problems.append(Problem(key=key, value=models[name].checkpoint, remedy=f"{remedy}: set this to null"))
    return problems


def urls(config: RunConfig) -> list[Problem]:
    """Addresses of running servers are valid and unique; a cluster without GPUs for servers needs some."""
    problems: list[Problem] = []
    elsewhere = config.cluster.gpus_per_node > 0 and config.cluster.num_server_gpus == 0
    for name, model in config.serving.models.items():
        key = f"serving.models.{name}.urls"
        if elsewhere and not model.urls and config.algorithm.name is not AlgorithmName.sft:
            remedy = (
                "cluster.num_server_gpus=0 means that the servers are already running: set their addresses, [http://host:port]"
            )
            problems.append(Problem(key=key, value=model.urls, remedy=remedy))
        bad = [url for url in model.urls if not is_address(url)]
        problems += [Problem(key=key, value=url, remedy="is not an address: use http://host:port") for url in bad]
        if model.served_name is not None and not model.urls:
            remedy = (
                "is only for running servers (urls); a server that this run starts has its name in serving.models: remove this"
            )
            problems.append(Problem(key=f"serving.models.{name}.served_name", value=model.served_name, remedy=remedy))
        if len(set(model.urls)) != len(model.urls):
            problems.append(Problem(key=key, value=model.urls, remedy="an address is given twice: give each address once"))
    return problems


def router(config: RunConfig) -> list[Problem]:
    """The router supports the chosen policy."""
    policy = config.serving.router_policy
    if policy in ROUTER_POLICIES:
        return []
    return [
        Problem(
            key="serving.router_policy", value=policy, remedy=f"there is no such policy: use one of {', '.join(ROUTER_POLICIES)}"
        )
    ]


def ports(config: RunConfig) -> list[Problem]:
    """Chosen ports are in range and belong to one server each; `machine.ports_free` checks that they are free."""
    problems: list[Problem] = []
    owners: dict[int, str] = {}
    for name, key, model in port_settings(config):
        if not 0 < model.port <= HIGHEST_PORT:
            continue
        wanted = range(model.port, model.port + max(model.num_replicas, 1))
        remedy = None
        if wanted[0] < LOWEST_PORT or wanted[-1] > HIGHEST_PORT:
            need = f"{len(wanted)} replicas need {wanted[0]} to {wanted[-1]}: " if len(wanted) > 1 else ""
            remedy = f"{need}use ports from {LOWEST_PORT} to {HIGHEST_PORT}, or 0 for free ones"
        elif shared := next((port for port in wanted if port in owners), None):
            remedy = f"port {shared} already belongs to {owners[shared]}: use another port, or 0 for a free one"
        if remedy is not None:
            problems.append(Problem(key=key, value=model.port, remedy=remedy))
        owners |= dict.fromkeys(wanted, name)
    return problems


def groups(config: RunConfig) -> list[Problem]:
    """Groups of servers are complete: prefill comes with decode, and no setting is given by group and model both."""
    problems: list[Problem] = []
    for name, model in config.serving.models.items():
        if not model.groups:
            continue
        key = f"serving.models.{name}"
        total = sum(group.num_replicas for group in model.groups.values())
        if model.urls:
            remedy = "its servers are already running (urls): remove the groups"
            problems.append(Problem(key=f"{key}.groups", value=", ".join(model.groups), remedy=remedy))
        elif model.num_replicas not in (1, total):
            remedy = f"its groups have {total} servers in all: remove this, or change num_replicas of the groups"
            problems.append(Problem(key=f"{key}.num_replicas", value=model.num_replicas, remedy=remedy))
        if model.port:
            remedy = f"the model has groups: give each group its port, {key}.groups.<group>.port"
            problems.append(Problem(key=f"{key}.port", value=model.port, remedy=remedy))
        problems += _role_problems(key, model)
    return problems


def apart(config: RunConfig) -> list[Problem]:
    """No sync comes between the two servers of a request: the keys and values that the first sends are those of old weights."""
    rollout, trains = config.rollout, config.mode in (Mode.train, Mode.plan)
    trained = [model for model in config.serving.models.values() if model.trained and is_apart(model)]
    if not (trained and trains and rollout.max_staleness and rollout.in_flight_updates):
        return []
    remedy = (
        "a prompt that a prefill server has read before a sync would be continued after it with the keys and values of the old "
        "weights: set false, so that model calls end before a sync"
    )
    return [Problem(key="rollout.in_flight_updates", value=True, remedy=remedy)]


def transfer_of_caches(config: RunConfig) -> list[Problem]:
    """Servers that are apart have the package by which one reads the other's cache."""
    names = [name for name, model in config.serving.models.items() if is_apart(model)]
    if not names or config.cluster.ray_address is not None or find_spec("nixl") is not None:
        return []
    remedy = "prefill and decode servers pass keys and values by NIXL, which is missing: pip install nixl==1.5.1, or role=regular"
    return [Problem(key=f"serving.models.{name}.groups", value="prefill, decode", remedy=remedy) for name in names]


def is_apart(model: ServedModelConfig) -> bool:
    """True if a model has servers that read prompts for others."""
    return any(group.role is ServerRole.prefill for group in model.groups.values())


def elastic(config: RunConfig) -> list[Problem]:
    """A number of servers that may change is one of equal servers that start and end without the trainer."""
    key, number = "serving.elastic.num_at_start", config.serving.elastic.num_at_start
    trained = {name: model for name, model in config.serving.models.items() if model.trained}
    if number is None or len(trained) != 1:
        return []
    ((name, model),) = trained.items()
    remedies = []
    if model.urls:
        remedies.append("the servers of the trained model are run by others (urls): use null")
    elif model.groups:
        remedies.append("servers in groups, prefill and decode among them, are as many as their groups say: use null")
    elif number > model.num_replicas or model.num_replicas == 1:
        remedies.append(
            f"serving.models.{name}.num_replicas={model.num_replicas} is the most servers that the run may have: raise it to as "
            "many, and at least 2"
        )
    if takes_turns(config):
        remedies.append("a server cannot start while the trainer has its GPU: set cluster.colocated=false, or use null")
    if config.adapters:
        remedies.append("several adapters share the servers, and no one of their runs may end one: use null")
    if config.deterministic:
        remedies.append("with deterministic=true what happens must not depend on time: use null")
    return [Problem(key=key, value=number, remedy=remedy) for remedy in remedies]


def elastic_in_service(config: RunConfig) -> list[Problem]:
    """A training service has as many servers as it starts."""
    if (number := config.serving.elastic.num_at_start) is None:
        return []
    return [Problem(key="serving.elastic.num_at_start", value=number, remedy="the servers of a service are fixed: use null")]


def chat_endpoints(config: RunConfig) -> list[Problem]:
    """An endpoint with a chat API has one address, is frozen, and takes no settings of servers that this run starts."""
    problems: list[Problem] = []
    for name, model in config.serving.models.items():
        key = f"serving.models.{name}"
        if model.api is ModelAPI.tokens:
            if model.chat != ChatConfig():
                remedy = f"has an effect only on an endpoint with OpenAI's chat API: set {key}.api=chat, or remove this"
                problems.append(Problem(key=f"{key}.chat", value="set", remedy=remedy))
            continue
        if model.trained:
            remedy = "training needs token ids and logprobs, which a chat API does not return: set api=tokens"
            problems.append(Problem(key=f"{key}.api", value=model.api.value, remedy=remedy))
        if len(model.urls) != 1:
            remedy = "an endpoint with a chat API needs exactly one address: use [https://host/v1]"
            problems.append(Problem(key=f"{key}.urls", value=model.urls, remedy=remedy))
        if model.vllm_args or model.checkpoint:
            ignored = "vllm_args" if model.vllm_args else "checkpoint"
            remedy = f"has no effect on an external endpoint: remove it, or set {key}.api=tokens"
            problems.append(Problem(key=f"{key}.{ignored}", value=getattr(model, ignored), remedy=remedy))
        variable = model.chat.api_key_variable
        if variable is not None and not VARIABLE.fullmatch(variable):  # it may be the key itself: it is not shown
            remedy = (
                "must be the name of an environment variable, in capitals, not the key itself: export the key, and use the name"
            )
            problems.append(Problem(key=f"{key}.chat.api_key_variable", value="…", remedy=remedy))
        reserved = sorted({"model", "messages", "tools", "stream", "n"} & set(model.chat.body))
        problems += [
            Problem(key=f"{key}.chat.body.{word}", value=model.chat.body[word], remedy="vime sets this field itself: remove it")
            for word in reserved
        ]
    return problems


def load_format(config: RunConfig) -> list[Problem]:
    """Only the trained model of a training run may start with random weights, which the trainer replaces at once."""
    problems: list[Problem] = []
    for name, model in config.serving.models.items():
        if model.trained and config.mode in (Mode.train, Mode.plan):
            continue
        settings = {f"serving.models.{name}": model.vllm_args}
        settings |= {f"serving.models.{name}.groups.{key}": group.vllm_args for key, group in model.groups.items()}
        for key, arguments in settings.items():
            given = next((word for word in ("load_format", "load-format") if arguments.get(word) == "dummy"), None)
            if given is not None:
                remedy = "no trainer replaces the random weights of this model, so its answers would be random: remove this"
                problems.append(Problem(key=f"{key}.vllm_args.{given}", value="dummy", remedy=remedy))
    return problems


def context(config: RunConfig) -> list[Problem]:
    """The trained model is served with no more positions than it has."""
    limit = config.model.max_position_embeddings
    return [
        Problem(
            key=f"serving.models.{name}.max_model_len",
            value=model.max_model_len,
            remedy=f"must be at most model.max_position_embeddings={limit}",
        )
        for name, model in config.serving.models.items()
        if model.trained and model.max_model_len > limit >= 1
    ]


def rotary_embeddings(config: RunConfig) -> list[Problem]:
    """Scaled rotary embeddings of frozen models have what their kind needs; those of the trained model belong in `model`."""
    problems = []
    for name, model in config.serving.models.items():
        rope, key = model.rope_parameters, f"serving.models.{name}.rope_parameters"
        if rope and model.trained:
            problems.append(
                Problem(key=key, value=rope, remedy="is the trained model: use model.rope_parameters, for trainer too")
            )
        elif rope:
            problems += scaling_problems(rope, key=key)
    return problems


def port_settings(config: RunConfig) -> list[tuple[str, str, ServedModelConfig]]:
    """Name, key of the port, and settings of each group of servers."""
    found = []
    for name, model in config.serving.models.items():
        for group in server_groups(name, model):
            of_group = f".groups.{group.name.removeprefix(f'{name}-')}" if model.groups else ""
            found.append((group.name, f"serving.models.{name}{of_group}.port", group.settings))
    return found


def _role_problems(key: str, model: ServedModelConfig) -> list[Problem]:
    roles = {group.role for group in model.groups.values()}
    value = ", ".join(f"{name}: {group.role.value}" for name, group in model.groups.items())
    if roles == {ServerRole.regular}:
        return []
    remedies = []
    if roles != {ServerRole.prefill, ServerRole.decode}:
        missing = sorted(role.value for role in {ServerRole.prefill, ServerRole.decode} - roles)
        extra = "regular groups cannot be combined with them" if ServerRole.regular in roles else ""
        need = f"there is no group with role={' or '.join(missing)}" if missing else ""
        remedies.append(f"{'; '.join(filter(None, (need, extra)))}: use both prefill and decode groups, or only regular ones")
    return [Problem(key=f"{key}.groups", value=value, remedy=remedy) for remedy in remedies]


def is_address(url: str) -> bool:
    """True if a text is an http address."""
    try:
        parsed = urlparse(url)
        return parsed.scheme in ("http", "https") and bool(parsed.hostname) and (parsed.port is None or parsed.port > 0)
    except ValueError:
        return False
