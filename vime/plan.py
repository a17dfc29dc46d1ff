"""`mode=plan`: what a run would do, computed from the configuration alone; starts nothing and needs no GPU.

Formulas, with P parameters, b bytes of the training precision, T×S the tensor- and pipeline-parallel sizes, D data-parallel:

- weights of the trainer: `b·P / (T·S)`; gradients: `4·P / (T·S)` (float32); optimizer: `12·P / (T·S·D)` on GPUs, where it is
  distributed (float32 copy and two moments), `12·P / (T·S)` on CPUs; a reference model for the KL: `b·P / (T·S)`;
- activations (without recomputation, arXiv 2205.05198 with flash attention): per token and layer `34·h` bytes in 16 bit
  (twice that in 32 bit), times tokens of a micro-batch over T, and the logits `4·tokens·vocabulary / T`;
- weights of a server: `b·P / T_server`; the KV cache has what is left of `gpu_memory_utilization`, at
  `2·layers·kv_heads·head_dim·b / T_server` bytes per token.
"""

import sys
from dataclasses import dataclass

import psutil
from rich.console import Console
from rich.table import Table

from vime.algorithm.description import describe
from vime.config import AlgorithmName, RunConfig, ServedModelConfig, WeightTransfer
from vime.model_size import BYTES, checkpoint_bytes, kv_bytes_per_token, num_parameters
from vime.placement import server_places, trainer_places, transport

GIB = 2**30
ACTIVATION_BYTES = 34


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


def show_plan(config: RunConfig) -> None:
    """Writes the plan to standard output."""
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 130, highlight=False, soft_wrap=False)
    for heading, lines in (("Run", summary(config)), ("Batch", batch(config)), ("Evaluation", evaluation(config))):
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
    return [
        f"{config.name}: {config.method.name or 'own functions'} with {config.algorithm.name.value}, seed {config.seed}",
        f"objective: {describe(config.algorithm)}",
        f"model {model.name} ({_count(num_parameters(model))} parameters, {config.trainer.precision.value}), "
        f"checkpoint {model.checkpoint or 'not given'}",
        f"cluster {cluster.name}: {where}, {how if cluster.gpus_per_node else 'all on the cores of this machine'}",
        f"folder {config.output_dir}, a checkpoint of {_gib(checkpoint_bytes(model, config.trainer))} every "
        f"{config.trainer.save_every} steps, {config.trainer.keep_checkpoints} kept",
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
    workers = rollout.num_workers * rollout.max_concurrent_rollouts
    return [
        f"{rollout.num_prompts} groups × {rollout.num_samples_per_prompt} = {rollouts} rollouts a step, at most "
        f"{min(workers, rollouts * (1 + rollout.max_staleness))} at once; each yields one sequence or more",
        f"{updates} optimizer step(s) of about {rollouts // updates} rollouts, in micro-batches of at most "
        f"{trainer.max_tokens_per_micro_batch:,} tokens on {ranks} data-parallel rank(s)",
        f"{trainer.num_steps} steps: {trainer.num_steps * rollouts:,} rollouts, "
        f"{trainer.num_steps * updates:,} optimizer steps, lr {trainer.lr:g} {trainer.lr_schedule.value}"
        f" after {trainer.warmup_steps} steps of warm-up",
        f"staleness at most {rollout.max_staleness} weight versions"
        + (" (synchronous, on-policy)" if rollout.max_staleness == 0 else ""),
    ]


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
        Part(name=f"trainer rank {rank}", node=place.node, gpus=place.gpus, memory=trainer_memory(config))
        for rank, place in enumerate(trainer_places(config, _num_ranks(config)))
    ]
    if config.algorithm.name is AlgorithmName.sft:
        return found
    for name, places in server_places(config).items():
        model = config.serving.models[name]
        for index, place in enumerate(places):
            port = str(model.port + index) if model.port else "free"
            memory = server_memory(config, model)
            found.append(Part(name=f"server {name}-{index}", node=place.node, gpus=place.gpus, memory=memory, port=port))
    return found


def trainer_memory(config: RunConfig) -> dict[str, float]:
    """Bytes of one trainer rank by what they hold."""
    model, trainer = config.model, config.trainer
    shards = trainer.tensor_parallel_size * trainer.pipeline_parallel_size
    share, size = num_parameters(model) / shards, BYTES[trainer.precision]
    replicas = trainer.data_parallel_size if config.cluster.gpus_per_node else 1
    tokens = trainer.max_tokens_per_micro_batch
    layers = model.num_layers  # 1F1B keeps as many micro-batches as there are stages, which have that share of the layers
    per_layer = ACTIVATION_BYTES * model.hidden_size * size / 2
    return {
        "weights": share * size,
        "gradients": share * 4,
        "optimizer": share * 12 / replicas,
        "reference": share * size if config.algorithm.kl_coefficient else 0.0,
        "activations": tokens * (per_layer * layers + 4 * model.vocab_size) / trainer.tensor_parallel_size,
    }


def server_memory(config: RunConfig, model: ServedModelConfig) -> dict[str, float]:
    """Bytes per GPU (or of the process, on a CPU) of one server; a frozen model's weights are not known here."""
    total = config.cluster.gpu_memory_gib * GIB if config.cluster.gpus_per_node else psutil.virtual_memory().total
    budget = model.gpu_memory_utilization * total
    own = model.trained or model.checkpoint in (None, config.model.checkpoint)
    weights = num_parameters(config.model) * BYTES[config.trainer.precision] / model.tensor_parallel_size if own else 0.0
    cache = budget if not config.cluster.gpus_per_node else max(0.0, budget - weights)
    return {"weights": weights, "KV cache": cache}


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
            remedy = "split it further, or make trainer.max_tokens_per_micro_batch smaller"
            lines.append(f"! {name} needs more than the {config.cluster.gpu_memory_gib:g} GiB of a GPU: {remedy}")
    actor = next((model for model in config.serving.models.values() if model.trained and not model.urls), None)
    if actor is not None and config.algorithm.name is not AlgorithmName.sft:
        per_token = kv_bytes_per_token(config.model, config.trainer.precision) / actor.tensor_parallel_size
        tokens = server_memory(config, actor)["KV cache"] / per_token
        lines.append(f"KV cache of one actor server: {tokens:,.0f} tokens, {tokens / actor.max_model_len:,.1f} full contexts")
    return lines


def placement_table(config: RunConfig) -> Table:
    """One line per process."""
    table = Table("process", "node", "GPU", "port", "memory", title="Placement", title_justify="left")
    for part in parts(config):
        gpus = ", ".join(map(str, part.gpus)) or "-"
        table.add_row(part.name, str(part.node), gpus, part.port or "-", _gib(sum(part.memory.values())))
    for name, model in config.serving.models.items():
        for url in model.urls:
            table.add_row(f"external {name}", "-", "-", url, "-")
    return table


def _num_ranks(config: RunConfig) -> int:
    trainer = config.trainer
    return trainer.tensor_parallel_size * trainer.pipeline_parallel_size * trainer.data_parallel_size


def _gib(size: float) -> str:
    return f"{size / GIB:.1f} GiB" if size >= 0.1 * GIB else f"{size / 2**20:.1f} MiB"


def _count(number: int) -> str:
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return str(number)
