"""`mode=plan`: what a run would do, computed from the configuration alone; starts nothing and needs no GPU."""

import sys
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from vime.algorithm.description import describe
from vime.config import (
    AlgorithmName,
    ModelAPI,
    RetrievalBackend,
    RetrievalConfig,
    RunConfig,
    ServedModelConfig,
    ServerRole,
    WeightTransfer,
)
from vime.layout import layers_of, position_of, world_size
from vime.memory import GIB, server_memory, trainer_memory
from vime.model_size import BYTES, checkpoint_bytes, kv_bytes_per_token, num_parameters
from vime.placement import ServerGroup, server_groups, server_places, trainer_places, transport


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One trainer rank or one server: where it runs and what it holds, in bytes.

    Example: `Part(name="trainer rank 3", node=0, gpus=(3,), memory={"weights": 2_000_000, "optimizer": 12_000_000})`.
    """

    name: str
    node: int
    gpus: tuple[int, ...]
    memory: dict[str, float]
    port: str = ""
    holds: str = ""
    """Of a trainer rank: its share of the model and of the data."""


def show_plan(config: RunConfig) -> None:
    """Writes the plan to standard output."""
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 130, highlight=False, soft_wrap=False)
    for heading, lines in (
        *(("Run", summary(config)), ("Batch", batch(config)), ("Evaluation", evaluation(config)), ("Serving", serving(config))),
    ):
        console.print(f"[bold]{heading}[/bold]")
        for line in lines:
            console.print(f"  {line}", markup=False)
    console.print(placement_table(config))
    console.print("[bold]Memory[/bold]")
    for line in memory(config):
        console.print(f"  {line}", markup=False)
    console.print("Nothing was started. Leave out mode=plan to run.")


def summary(config: RunConfig) -> list[str]:
    """Who trains what, where, and into which folder."""
    model, cluster = config.model, config.cluster
    where = f"{cluster.num_nodes} × {cluster.gpus_per_node} GPUs" if cluster.gpus_per_node else "no GPU"
    how = "trainer and servers take turns" if cluster.colocated else "trainer and servers apart"
    best = " and the best" if config.trainer.keep_best else ""
    return [
        f"{config.name}: {config.method.name or 'own functions'} with {config.algorithm.name.value}, seed {config.seed}",
        f"objective: {describe(config.algorithm)}",
        f"model {model.name} ({_count(num_parameters(model))} parameters, {config.trainer.precision.value}), "
        f"checkpoint {model.checkpoint or 'not given'}",
        f"cluster {cluster.name}: {where}, {how if cluster.gpus_per_node else 'all on the cores of this machine'}",
        f"folder {config.output_dir}, a checkpoint of {_gib(checkpoint_bytes(model))} every "
        f"{config.trainer.save_every} steps, {config.trainer.keep_checkpoints}{best} kept",
        *([f"weights reach the servers {weight_transfer(config)}"] if config.algorithm.name is not AlgorithmName.sft else []),
    ]


WAYS = {
    WeightTransfer.shm: "through /dev/shm (shm)",
    WeightTransfer.disk: "through the run folder, which all nodes must see (disk)",
    WeightTransfer.ipc: "in the memory of the GPUs that they share (ipc)",
    WeightTransfer.nccl: "from GPU to GPU (nccl)",
    WeightTransfer.gloo: "over the network (gloo)",
}


def weight_transfer(config: RunConfig) -> str:
    """How a new version of the weights travels, and how large it is."""
    return f"{WAYS[transport(config)]}, {_gib(num_parameters(config.model) * BYTES[config.trainer.precision])} each time"


def batch(config: RunConfig) -> list[str]:
    """Groups, rollouts, optimizer steps and tokens of one step and of the run."""
    trainer, rollout = config.trainer, config.rollout
    updates, ranks = trainer.num_updates_per_batch, trainer.data_parallel_size
    if config.algorithm.name is AlgorithmName.sft:
        return [f"{trainer.num_steps} steps of about {trainer.sft_tokens_per_step:,} tokens of demonstrations, lr {trainer.lr:g}"]
    rollouts = rollout.num_prompts * rollout.num_samples_per_prompt
    calls = config.method.calls_per_rollout(config)
    expected = f"about {calls} expected calls per rollout" if calls else "calls per rollout: as many as the agent makes"
    sequences = f"about {rollouts * calls:,}" if calls else f"{rollouts:,} or more"
    each = f"about {rollouts // updates} rollouts" + (f" ({rollouts * calls // updates:,} sequences)" if calls else "")
    part = "GPU" if config.cluster.gpus_per_node else "rank"
    workers = rollout.num_workers * rollout.max_concurrent_rollouts
    return [
        f"{rollout.num_prompts} groups × {rollout.num_samples_per_prompt} = {rollouts} rollouts a step, at most "
        f"{min(workers, rollouts * (1 + rollout.max_staleness))} at once",
        f"{expected}, sequences per step: {sequences}",
        f"{updates} optimizer step(s) per batch of rollouts, each of {each}",
        f"tokens per {part}: at most {trainer.max_tokens_per_micro_batch:,} in a micro-batch, on each of {ranks} data-parallel "
        f"rank(s){f', whose rows {trainer.context_parallel_size} {part}s share' if trainer.context_parallel_size > 1 else ''}",
        f"{trainer.num_steps} steps: {trainer.num_steps * rollouts:,} rollouts, "
        f"{trainer.num_steps * updates:,} optimizer steps, lr {trainer.lr:g} {trainer.lr_schedule.value}"
        f" after {trainer.warmup_steps} steps of warm-up",
        *generation(config),
    ]


def generation(config: RunConfig) -> list[str]:
    """How generation and training overlap, and which groups make a batch."""
    rollout = config.rollout
    if rollout.max_staleness == 0:
        lines = ["synchronous, on-policy: a batch is generated by the weights that it trains"]
    else:
        how = "between two tokens" if rollout.in_flight_updates else "between two model calls"
        kept = ", keys and values of the old ones kept" if config.serving.keep_cache else ""
        lines = [
            f"asynchronous: tokens at most {rollout.max_staleness} weight versions old; servers change weights {how}{kept}",
        ]
    if rollout.num_oversampled_prompts:
        rest = "go on in the next batch" if rollout.partial_rollouts else "are trained later if their tokens are young enough"
        total = rollout.num_prompts + rollout.num_oversampled_prompts
        lines.append(f"a batch is the first {rollout.num_prompts} of {total} groups; the others {rest}")
    if rollout.num_oversampled_samples_per_prompt:
        total = rollout.num_samples_per_prompt + rollout.num_oversampled_samples_per_prompt
        lines.append(f"a group is the first {rollout.num_samples_per_prompt} of {total} rollouts; the others are aborted")
    if rollout.filter:
        lines.append(f"groups that {rollout.filter} drops are replaced, up to {100 * rollout.max_filtered_share:g} % of them")
    return lines


def evaluation(config: RunConfig) -> list[str]:
    """How many items are scored, and how often."""
    settings, sets = config.evaluation, config.data.evaluation
    if not sets:
        return ["none: data.evaluation is empty"]
    known = sum(dataset.num_items or 0 for dataset in sets)
    unknown = sum(dataset.num_items is None for dataset in sets)
    once = len(settings.rows) * settings.num_runs + len(settings.extra_temperatures) * ("scaffold" in settings.rows)
    counts = [f"{known:,} items"] * bool(known) + [f"all items of {unknown} set(s)"] * bool(unknown)
    items = " and ".join(counts)
    lines = [f"{dataset.name}: {dataset.path or dataset.generator}" for dataset in sets]
    rows = ", ".join(settings.rows)
    total = f", {known * once:,} rollouts" if known and not unknown else ""
    during = config.trainer.evaluate_every
    return [
        *lines,
        f"{rows}: {settings.num_runs} run(s) each of {items} at temperature {settings.temperature:g}{total}",
        f"during training: {f'every {during} steps' if during else 'none'}",
    ]


def parts(config: RunConfig) -> list[Part]:
    """Trainer ranks, then the servers that this run starts."""
    found = [
        Part(
            name=f"trainer rank {rank}",
            node=place.node,
            gpus=place.gpus,
            memory=trainer_memory(config),
            holds=holds(config, rank),
        )
        for rank, place in enumerate(trainer_places(config, world_size(config.trainer)))
    ]
    if config.algorithm.name is AlgorithmName.sft:
        return found
    for name, places in server_places(config).items():
        groups = server_groups(name, config.serving.models[name])
        replicas = [(group, index) for group in groups for index in range(group.settings.num_replicas)]
        for (group, index), place in zip(replicas, places, strict=True):
            port = str(group.settings.port + index) if group.settings.port else "free"
            memory = server_memory(config, group.settings)
            found.append(Part(name=f"server {group.name}-{index}", node=place.node, gpus=place.gpus, memory=memory, port=port))
    return found


def holds(config: RunConfig, rank: int) -> str:
    """Which share of the model and the data a trainer rank has, for example `tensor 1 of 2, layers 0-13, data 3 of 4`."""
    trainer, model, own = config.trainer, config.model, position_of(rank, config.trainer)
    runs = layers_of(own.pipeline, trainer, model.num_layers)
    words = [("layers " + " and ".join(f"{run.start}-{run.stop - 1}" for run in runs), trainer.pipeline_parallel_size)]
    if model.num_experts:
        count = model.num_experts // trainer.expert_parallel_size
        words.append((f"experts {own.expert * count}-{(own.expert + 1) * count - 1}", trainer.expert_parallel_size))
    for name in ("tensor", "context", "data"):
        size = getattr(trainer, f"{name}_parallel_size")
        words.append((f"{name} {getattr(own, name)} of {size}", size))
    return ", ".join(word for word, size in words if size > 1) or "all"


def memory(config: RunConfig) -> list[str]:
    """The sum per part, beside what a GPU has; and how much context the KV cache holds."""
    lines = []
    seen: dict[str, Part] = {}
    for part in parts(config):
        seen.setdefault("each trainer rank" if part.name.startswith("trainer") else part.name.rpartition("-")[0], part)
    for name, part in seen.items():
        pieces = ", ".join(f"{piece} {_gib(size)}" for piece, size in part.memory.items() if size)
        lines.append(f"{name}: {_gib(sum(part.memory.values()))} = {pieces}")
    limit = config.cluster.gpu_memory_gib * GIB
    for name, part in seen.items():
        if config.cluster.gpus_per_node and sum(part.memory.values()) > limit:
            remedy = "split it further, set trainer.recompute=true, or make trainer.max_tokens_per_micro_batch smaller"
            lines.append(f"! {name} needs more than the {config.cluster.gpu_memory_gib:g} GiB of a GPU: {remedy}")
    actor = next((model for model in config.serving.models.values() if model.trained and not model.urls), None)
    if actor is not None and config.algorithm.name is not AlgorithmName.sft:
        per_token = kv_bytes_per_token(config.model, config.trainer.precision) / actor.tensor_parallel_size
        tokens = server_memory(config, actor)["KV cache"] / per_token
        lines.append(f"KV cache of one actor server: {tokens:,.0f} tokens, {tokens / actor.max_model_len:,.1f} full contexts")
    return lines


def placement_table(config: RunConfig) -> Table:
    """One line per process."""
    table = Table("process", "node", "GPU", "port", "memory", "holds", title="Placement", title_justify="left")
    for part in parts(config):
        gpus = ", ".join(map(str, part.gpus)) or "-"
        table.add_row(part.name, str(part.node), gpus, part.port or "-", _gib(sum(part.memory.values())), part.holds or "-")
    for name, model in config.serving.models.items():
        if _num_servers(name, model) > 1:
            table.add_row(f"router {name}", "0", "-", "free", "-", "-")
        for url in model.urls:
            table.add_row(f"external {name}", "-", "-", url, "-", "-")
    retrieval = config.retrieval
    if retrieval.url is not None:
        table.add_row("external retrieval", "-", "-", retrieval.url, "-", "-")
    elif retrieval.is_started:
        table.add_row("retrieval", "0", "-", str(retrieval.port or "free"), "-", "-")
    return table


def serving(config: RunConfig) -> list[str]:
    """What each served model is, and how its requests are spread."""
    if config.algorithm.name is AlgorithmName.sft:
        return ["none: algorithm=sft asks no model"]
    lines = [f"{name}: {_served(config, name, model)}" for name, model in config.serving.models.items()]
    return lines + ([f"retrieval: {_retrieval(config.retrieval)}"] if config.retrieval.is_there else [])


def _retrieval(retrieval: RetrievalConfig) -> str:
    """What the retrieval service searches, and how."""
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
        return f"chat API, model {model.served_name or name}, {key}, {rate}{chat.max_concurrent_requests} at once{paid}"
    what = "trained" if model.trained else "frozen"
    groups = [_group(group, on_gpus=config.cluster.gpus_per_node > 0) for group in server_groups(name, model)]
    pieces = groups or [f"{len(model.urls)} running server(s)"]
    if not model.urls:
        what += f", {model.checkpoint or config.model.checkpoint}"
    router = f", router {config.serving.router_policy}" if _num_servers(name, model) > 1 else ""
    return f"{what}; {', '.join(pieces)}{router}"


def _group(group: ServerGroup, *, on_gpus: bool) -> str:
    model = group.settings
    details = [group.role.value] if group.role is not ServerRole.regular else []
    details += [f"{model.tensor_parallel_size} GPU(s) each"] if on_gpus else []
    details += [f"{key}={value}" for key, value in model.vllm_args.items()]
    return f"{model.num_replicas} × {group.name}" + (f" ({', '.join(details)})" if details else "")


def _num_servers(name: str, model: ServedModelConfig) -> int:
    return sum(group.settings.num_replicas for group in server_groups(name, model)) or len(model.urls)


def _gib(size: float) -> str:
    return f"{size / GIB:.1f} GiB" if size >= 0.1 * GIB else f"{size / 2**20:.1f} MiB"


def _count(number: int) -> str:
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return str(number)
