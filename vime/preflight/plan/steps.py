"""The sections Run, Batch and Evaluation of a plan: objective, batch arithmetic, overlap of generation and training, scores."""

import math

from vime.algorithm.choice import is_paired
from vime.algorithm.description import describe
from vime.cluster.placement import sends_adapters, transport
from vime.config import AlgorithmName, Before, Fp8Recipe, RoutingReplay, RunConfig, TrainedQuantization, WeightTransfer
from vime.evaluation.conditions import SCAFFOLD, TRAINED
from vime.memory.kv_cache import num_concurrent_rollouts
from vime.memory.tokens import experts_bytes
from vime.model.size import BYTES, checkpoint_bytes, num_parameters, num_trained_parameters
from vime.preflight.plan.amounts import count, gib
from vime.preflight.plan.risks import risks


def summary(config: RunConfig) -> list[str]:
    """The method, the objective, the model, the cluster and the folder of the run."""
    model, cluster = config.model, config.cluster
    where = f"{cluster.num_nodes} × {cluster.gpus_per_node} GPUs" if cluster.gpus_per_node else "no GPU"
    how = "trainer and servers take turns" if cluster.colocated else "separate GPUs for trainer and servers"
    best = " and the best" if config.trainer.keep_best else ""
    saved = checkpoint_bytes(model, config.trainer, config.algorithm.critic.place)
    lora, trained = config.trainer.lora, count(num_trained_parameters(model, config.trainer))
    adapters = f", adapters of rank {lora.rank} with {trained} are trained" if lora.rank else ""
    seed = f"seed {config.seed}" + (", repeatable on one machine (deterministic)" if config.deterministic else "")
    return [
        *[f"adapter {name}: {_adapter(own)}" for name, own in config.adapters.items()],
        *(
            ["each has rollout workers, batches and evaluations of its own; what follows is the first's"]
            if config.adapters
            else []
        ),
        f"{config.name}: {config.method.name or 'own functions'}, {seed}",
        f"objective: {config.algorithm.name.value}: {describe(config.algorithm)}",
        *[f"risk: {text}" for text in risks(config)],
        f"model {model.name} ({count(num_parameters(model))} parameters, {config.trainer.precision.value}{adapters}), "
        f"checkpoint {model.checkpoint or 'not given'}",
        *trained_numbers(config),
        f"cluster {cluster.name}: {where}, {how if cluster.gpus_per_node else 'all on the cores of this machine'}",
        f"folder {config.output_dir}, a checkpoint of {gib(saved)} every "
        f"{config.trainer.save_every} steps, {config.trainer.keep_checkpoints}{best} kept",
        *([f"weights reach the servers {weight_transfer(config)}"] if config.algorithm.name is not AlgorithmName.sft else []),
    ]


def trained_numbers(config: RunConfig) -> list[str]:
    """The formats in which linear layers are trained, where these are not the run's precision."""
    chosen, fp8 = config.trainer.quantization, config.trainer.fp8
    lines = []
    if chosen is TrainedQuantization.int8:
        lines.append("linear layers are trained in int8, inputs too; the servers compute with the same integers")
    elif chosen is TrainedQuantization.int4:
        lines.append("linear layers are trained in int4; the servers get the weights that these integers represent")
    if fp8.recipe is not Fp8Recipe.none:
        left = fp8.num_first_bf16_layers, fp8.num_last_bf16_layers
        without = f", without the first {left[0]} and the last {left[1]} layers" if any(left) else ""
        lines.append(f"products of linear layers in FP8 by Transformer Engine ({fp8.recipe.value}){without}; not run so far")
    return lines


def _adapter(config: RunConfig) -> str:
    """The objective and the rate of one of several adapters."""
    trainer = config.trainer
    how = f"rank {trainer.lora.rank}, lr {trainer.lr:g}, {trainer.num_steps} steps"
    return f"{config.method.name or 'own functions'}, {config.algorithm.name.value}: {describe(config.algorithm)}; {how}"


WAYS = {
    WeightTransfer.shm: "through /dev/shm (shm)",
    WeightTransfer.disk: "through the run folder, which all nodes must see (disk)",
    WeightTransfer.ipc: "in the memory of the GPUs that they share (ipc)",
    WeightTransfer.nccl: "from GPU to GPU (nccl)",
    WeightTransfer.gloo: "over the network (gloo)",
}


def weight_transfer(config: RunConfig) -> str:
    """The way in which a new version of the weights reaches the servers, and its size."""
    adapters = sends_adapters(config)
    sent = num_trained_parameters(config.model, config.trainer) if adapters else num_parameters(config.model)
    number = config.cluster.num_delta_syncs
    often = f"once in {number + 1} syncs, otherwise as the difference from the version before" if number else "each time"
    return f"{WAYS[transport(config)]}, {gib(sent * BYTES[config.trainer.precision])} {often}"


def batch(config: RunConfig) -> list[str]:
    """Groups, rollouts, optimizer steps and tokens of one training step and of the run."""
    trainer, rollout = config.trainer, config.rollout
    updates, ranks = trainer.num_updates_per_batch, trainer.data_parallel_size
    if is_paired(config):
        return [f"{trainer.num_steps} steps of {rollout.num_prompts} pairs of replies, lr {trainer.lr:g}"]
    if config.algorithm.name is AlgorithmName.sft:
        return [f"{trainer.num_steps} steps of about {trainer.sft_tokens_per_step:,} tokens of demonstrations, lr {trainer.lr:g}"]
    rollouts = rollout.num_prompts * rollout.num_samples_per_prompt
    calls = config.method.expected_calls(config)
    expected = f"about {calls} expected calls per rollout" if calls else "calls per rollout: as many as the agent makes"
    sequences = f"about {rollouts * calls:,}" if calls else f"{rollouts:,} or more"
    each = f"about {rollouts // updates} rollouts" + (f" ({rollouts * calls // updates:,} sequences)" if calls else "")
    part = "GPU" if config.cluster.gpus_per_node else "rank"
    return [
        f"{rollout.num_prompts} groups × {rollout.num_samples_per_prompt} = {rollouts} rollouts a step, at most "
        f"{min(num_concurrent_rollouts(config), rollouts * (1 + rollout.max_staleness))} at once",
        f"{expected}, sequences per step: {sequences}",
        f"{updates} optimizer step(s) per batch of rollouts, each of {each}",
        f"tokens per {part}: at most {trainer.max_tokens_per_micro_batch:,} in a micro-batch, on each of {ranks} data-parallel "
        f"rank(s){f', whose rows {trainer.context_parallel_size} {part}s share' if trainer.context_parallel_size > 1 else ''}",
        f"{trainer.num_steps} steps: {trainer.num_steps * rollouts:,} rollouts, "
        f"{trainer.num_steps * updates:,} optimizer steps, lr {trainer.lr:g} {trainer.lr_schedule.value}"
        f" after {trainer.warmup_steps} steps of warm-up",
        *generation(config),
        *replay(config),
    ]


def replay(config: RunConfig) -> list[str]:
    """The experts that update passes replay, and the bytes that travel with each token."""
    kind, model = config.trainer.routing_replay, config.model
    if kind is RoutingReplay.none:
        return []
    if kind is RoutingReplay.trainer:
        return ["routing replay (R2): updates use the experts of the pass for the old logprobs, which stay on the ranks"]
    size = experts_bytes(config)
    return [
        f"routing replay (R3): servers send the experts of each token that they read, {model.num_layers} layers × "
        f"{model.num_experts_per_token} in {size:,} bytes, {math.ceil(size / 3) * 4:,} as text; once for each turn, without what "
        "earlier turns have sent",
        f"the trainer's rows hold the same {size:,} bytes for each token, in all passes under the present weights",
    ]


def generation(config: RunConfig) -> list[str]:
    """The overlap of generation and training, and the choice of groups for a batch."""
    rollout = config.rollout
    if rollout.max_staleness == 0:
        lines = ["synchronous and on-policy: the weights in training generate the batch"]
    else:
        how = "between two tokens" if rollout.in_flight_updates else "between two model calls"
        kept = " and keep the KV cache" if config.serving.keep_cache else ""
        lines = [
            f"asynchronous: tokens at most {rollout.max_staleness} weight versions old; servers change weights {how}{kept}",
        ]
    if rollout.producer:
        lines.append(f"{rollout.producer} decides which prompts run when and which {rollout.num_prompts} groups make a batch")
    if rollout.group_function:
        lines.append(f"{rollout.group_function} runs the rollouts of a group")
    if rollout.num_oversampled_prompts:
        rest = "continue in the next batch" if rollout.partial_rollouts else "are trained later unless their tokens are too old"
        total = rollout.num_prompts + rollout.num_oversampled_prompts
        lines.append(f"a batch is the first {rollout.num_prompts} of {total} groups; the others {rest}")
    if rollout.num_oversampled_samples_per_prompt:
        total = rollout.num_samples_per_prompt + rollout.num_oversampled_samples_per_prompt
        lines.append(f"a group is the first {rollout.num_samples_per_prompt} of {total} rollouts; the others are aborted")
    if rollout.filter:
        lines.append(f"groups that {rollout.filter} drops are replaced, up to {100 * rollout.max_filtered_share:g} % of them")
    return lines


def evaluation(config: RunConfig) -> list[str]:
    """The data sets, and how many items are scored how often."""
    settings, sets = config.evaluation, config.data.evaluation
    if not sets:
        return ["none: data.evaluation is empty"]
    known = sum(dataset.num_items or 0 for dataset in sets)
    unknown = sum(dataset.num_items is None for dataset in sets)
    measured = settings.rows if settings.before is Before.full else [row for row in settings.rows if row == TRAINED]
    once = len(measured) * settings.num_runs + len(settings.extra_temperatures) * (SCAFFOLD in measured)
    counts = [f"{known:,} items"] * bool(known) + [f"all items of {unknown} set(s)"] * bool(unknown)
    items = " and ".join(counts)
    lines = [f"{dataset.name}: {dataset.path or dataset.generator}" for dataset in sets]
    rows, left_out = ", ".join(measured) or "no row", ", ".join(row for row in settings.rows if row not in measured)
    before = "the untrained scaffold once, during the first batch" if settings.before is Before.one_run else "nothing"
    total = f", {known * once:,} rollouts" if known and not unknown else ""
    during = config.trainer.evaluate_every
    return [
        *lines,
        f"{rows}: {settings.num_runs} run(s) each of {items} at temperature {settings.temperature:g}{total}",
        *([f"before training: {before}; mode=eval measures {left_out} for the table"] if left_out else []),
        f"during training: {f'every {during} steps' if during else 'none'}",
    ]
