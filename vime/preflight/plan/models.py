"""The section Serving of a plan: the served models, their servers and routers, retrieval and reward service."""

from vime.cluster.placement import ServerGroup, server_groups
from vime.config import (
    AlgorithmName,
    KVCacheDtype,
    Mode,
    ModelAPI,
    Quantization,
    RetrievalBackend,
    RetrievalConfig,
    RewardServiceConfig,
    RunConfig,
    ServedModelConfig,
    ServerRole,
    SpeculationMethod,
)
from vime.serving.quantization import gets_integers
from vime.serving.sampling import sampling_parameters


def serving(config: RunConfig) -> list[str]:
    """One line for each served model, its groups of servers and its router, and for the services."""
    if config.algorithm.name is AlgorithmName.sft:
        return ["none: algorithm=sft asks no model"]
    lines = [f"{name}: {_served(config, name, model)}" for name, model in config.serving.models.items()]
    if config.retrieval.is_there:
        lines.append(f"retrieval: {_retrieval(config.retrieval)}")
    return lines + ([f"rewards: {_reward_service(config.reward_service)}"] if config.reward_service.url is not None else [])


def _reward_service(service: RewardServiceConfig) -> str:
    rate = f"{service.max_requests_per_minute:g} requests a minute, " if service.max_requests_per_minute is not None else ""
    key = f"key from {service.api_key_variable}" if service.api_key_variable else "no key"
    limits = f"{rate}{service.max_concurrent_requests} at once, {service.max_retries + 1} attempts of "
    limits += f"{service.request_timeout_seconds:g} s"
    return f"a running service, {service.url}, {key}, {service.max_batch_size} rollouts a request, {limits}"


def _retrieval(retrieval: RetrievalConfig) -> str:
    """The corpus of the retrieval service, and how it is searched."""
    if retrieval.url is not None:
        return f"a running service, {retrieval.url}"
    how = retrieval.backend.value
    if retrieval.backend is RetrievalBackend.faiss:
        where = f" served at {retrieval.embedding_url}" if retrieval.embedding_url else ""
        how += f" ({retrieval.search.value}) over {retrieval.embedding} embeddings{where}"
    what, folder = retrieval.corpus or retrieval.generator, retrieval.index_folder or "the run folder"
    return f"{how}, {what}, {retrieval.topk} passages a query, index in {folder}"


def _served(config: RunConfig, name: str, model: ServedModelConfig) -> str:
    if model.api is ModelAPI.chat:
        chat = model.chat
        rate = f"{chat.max_requests_per_minute:g} requests a minute, " if chat.max_requests_per_minute is not None else ""
        prices = chat.dollars_per_million_input_tokens, chat.dollars_per_million_output_tokens
        paid = f", ${prices[0]:g} and ${prices[1]:g} per million tokens in and out" if any(prices) else ""
        key = f"key from {chat.api_key_variable}" if chat.api_key_variable else "no key"
        limits = f"{rate}{chat.max_concurrent_requests} at once{paid}"
        return f"chat API, model {model.served_name or name}, {key}, {limits}; {_sampled(config, model)}"
    what = "trained" if model.trained else "frozen"
    groups = [_group(group, on_gpus=config.cluster.gpus_per_node > 0) for group in server_groups(name, model)]
    pieces = groups or [f"{len(model.urls)} running server(s)"]
    if not model.urls:
        what += f", {model.checkpoint or config.model.checkpoint}"
        what += f" with the adapter {model.adapter}" if model.adapter else ""
    router = f", router {config.serving.router_policy}" if num_servers(name, model) > 1 else ""
    drafted = "" if model.speculative.method is SpeculationMethod.none else f"; {_drafted(config, model)}"
    joining = f", {_joining(config, model)}" if model.trained and config.serving.elastic.num_at_start is not None else ""
    return f"{what}; {', '.join(pieces)}{joining}{router}; {_sampled(config, model)}{drafted}{_low_precision(config, model)}"


def _joining(config: RunConfig, model: ServedModelConfig) -> str:
    """The number of servers at the start, and how it changes."""
    if config.mode is Mode.eval:
        return "all of them, as an evaluation has no fewer"
    elastic = config.serving.elastic
    return (
        f"{elastic.num_at_start} at the start, then as many from 1 to {model.num_replicas} as `vime servers RUN NUMBER` asks for "
        f"(one that leaves finishes its requests for {elastic.drain_seconds:g} s)"
    )


def _low_precision(config: RunConfig, model: ServedModelConfig) -> str:
    """The number formats of weights and KV cache that differ from the run's."""
    said = []
    if model.quantization is Quantization.int8:
        said.append(
            "weights of linear layers in int8, quantized by the trainer"
            if gets_integers(config, model)
            else "no int8: without a trainer the weights are the checkpoint's"
        )
    elif model.quantization is not Quantization.none:
        again = " and at every sync" if model.trained and config.mode is not Mode.eval else ""
        said.append(f"weights of linear layers in {model.quantization.value}, quantized by the server when it starts{again}")
    if model.kv_cache_dtype is not KVCacheDtype.auto:
        said.append(f"keys and values in {model.kv_cache_dtype.value}")
    if said and model.trained and config.algorithm.correction.allow_none:
        said.append("trained without a correction where none is chosen")
    return "".join(f"; {each}" for each in said)


def _drafted(config: RunConfig, model: ServedModelConfig) -> str:
    """The source of drafted tokens, and the effect of syncs on it."""
    chosen = model.speculative
    if chosen.method is SpeculationMethod.early_exit and config.mode is Mode.eval:
        return "no speculation: its first layers would get their weights by syncs"
    ahead = f"speculates {chosen.num_tokens} tokens ahead"
    if chosen.method is SpeculationMethod.ngram:
        return f"{ahead}, by n-grams of {chosen.prompt_lookup_min} to {chosen.prompt_lookup_max} tokens"
    if chosen.method is SpeculationMethod.early_exit:
        return f"{ahead}, with its first {chosen.num_layers} of {config.model.num_layers} layers, which every sync changes"
    frozen = ", frozen: it accepts less as the policy moves away" if model.trained else ""
    return f"{ahead}, with {chosen.checkpoint}{frozen}"


def _sampled(config: RunConfig, model: ServedModelConfig) -> str:
    """The sampling of the model's replies, and the arguments of its chat template."""
    args = config.model.chat_template_args if model.trained else model.chat_template_args
    told = f", {', '.join(f'{name}={value}' for name, value in args.items())}" if args else ""
    if model.trained:
        rollout = config.rollout
        cut = [f"top-k {rollout.top_k}"] if rollout.top_k is not None else []
        cut += [f"top-p {rollout.top_p:g}"] if rollout.top_p < 1 else []
        kept = f", trained over the tokens that {' and '.join(cut)} keep" if cut else ""
        return f"temperature {rollout.temperature:g} in training{kept}{told}"
    parameters = sampling_parameters(model.sampling) | model.chat.body
    if parameters.get("temperature") == 0:
        parameters["temperature"] = "0 (greedy)"
    written = ", ".join(f"{name.replace('_', '-')} {value}" for name, value in parameters.items())
    return f"{written or 'sampled as its server does'}{told}"


def _group(group: ServerGroup, *, on_gpus: bool) -> str:
    model = group.settings
    details = [group.role.value] if group.role is not ServerRole.regular else []
    details += [f"{model.tensor_parallel_size} GPU(s) each"] if on_gpus else []
    details += [f"{key}={value}" for key, value in model.vllm_args.items()]
    return f"{model.num_replicas} × {group.name}" + (f" ({', '.join(details)})" if details else "")


def num_servers(name: str, model: ServedModelConfig) -> int:
    """The number of servers of a model, started or external; a router distributes requests where there are several."""
    return sum(group.settings.num_replicas for group in server_groups(name, model)) or len(model.urls)
