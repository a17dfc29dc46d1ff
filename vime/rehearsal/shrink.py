"""The configuration of a rehearsal: that of the run with other sizes and places, and nothing else.

What stays as it is: method and prompts, objective, optimizer, sampling, lengths, limits, context sizes, which models there are,
the retrieval service. What becomes small: model, batch, steps, items, runs, the cluster. `shrink` also says in words what it
replaced.
"""

from dataclasses import fields, replace
from pathlib import Path

from vime.cluster.ports import LOOPBACK, free_port
from vime.config import (
    Before,
    ClusterConfig,
    DistillationConfig,
    ElasticConfig,
    EvaluationConfig,
    LoggerConfig,
    Mode,
    ModelConfig,
    Precision,
    RolloutConfig,
    RunConfig,
    ServedModelConfig,
    SpeculativeConfig,
    TeacherConfig,
    TrackerName,
    TrainerConfig,
)
from vime.hooks import load_hook
from vime.machine import memory_bytes
from vime.rehearsal.local_data import Shrunk, local_dataset, local_retrieval

NUM_STEPS = NUM_PROMPTS = NUM_LAYERS = 2
NUM_SAMPLES = 4
NUM_RUNS_ALONE = 8
"""Most runs of an evaluation without training, whose rollouts are all that is played."""
HIDDEN_SIZE, HEAD_DIM, NUM_HEADS = 64, 32, 2
NUM_EXPERTS, EXPERTS_PER_TOKEN, EXPERT_SIZE = 4, 2, 64
CACHE_BYTES = 2**29
"""Memory of each server's KV cache: half a million tokens or more."""
MOST_SEQUENCES = 64
SMALL_BYTES = 100 * 2**20
"""Size of a local checkpoint that a rehearsal takes as it is."""
FROZEN = "frozen_in_rehearsal"
"""The served model behind the names of all frozen ones."""


def model_folder(config: RunConfig) -> Path:
    """The folder of the random model of a rehearsal."""
    return Path(str(config.output_dir)) / "rehearsal" / "model"


def shrink(config: RunConfig) -> Shrunk:
    """The configuration of the rehearsal of a run, which itself stays as it is. Nothing is written."""
    shrunk = Shrunk(config=replace(config))
    small = shrunk.config
    has_own = is_small(config.model.checkpoint)
    if not has_own:
        small.model = small_model(config.model, checkpoint=str(model_folder(config)))
        shrunk.replaced.append(
            f"model: {config.model.checkpoint} is a random {config.model.family.value} model with {NUM_LAYERS} layers, "
            f"hidden size {HIDDEN_SIZE} and the same {config.model.vocab_size} tokens"
        )
    small.cluster = ClusterConfig()
    small.trainer = _trainer(config.trainer)
    critic = config.algorithm.critic
    alone = min(critic.warmup_steps, small.trainer.num_steps - 1)  # the policy takes a step too
    small.algorithm = replace(
        config.algorithm, critic=replace(critic, warmup_steps=alone), distillation=_teachers(config, shrunk, has_own=has_own)
    )
    small.rollout = _rollout(config.rollout)
    small.evaluation = _evaluation(config.evaluation, least=NUM_RUNS_ALONE if config.mode is Mode.eval else 1)
    models = _served(config, shrunk, has_own=has_own)
    small.serving = replace(config.serving, models=models, elastic=ElasticConfig())
    small.logger = LoggerConfig(tracker=TrackerName.none)
    small.retrieval = local_retrieval(config, shrunk)
    small.data = replace(
        config.data,
        train=local_dataset(config.data.train, config, shrunk),
        evaluation=[local_dataset(dataset, config, shrunk) for dataset in config.data.evaluation],
    )
    if config.method.rehearsal:
        shrunk.replaced += load_hook(config.method.rehearsal).adapt(small)
    return shrunk


def _teachers(config: RunConfig, shrunk: Shrunk, *, has_own: bool) -> DistillationConfig:
    """The teachers; in the place of a checkpoint for the trainer that does not fit there is the student's."""
    distillation, teachers = config.algorithm.distillation, dict[str, TeacherConfig]()
    for name, teacher in distillation.teachers.items():
        is_replaced = teacher.checkpoint is not None and not (has_own and is_small(teacher.checkpoint))
        teachers[name] = replace(teacher, checkpoint=shrunk.config.model.checkpoint) if is_replaced else teacher
        if is_replaced:
            shrunk.replaced.append(f"teacher {name}: {teacher.checkpoint} has the weights that the model begins with")
    return replace(distillation, teachers=teachers)


def is_small(checkpoint: str) -> bool:
    """True if a checkpoint is a local folder with so few weights that a rehearsal can take it."""
    folder = Path(checkpoint)
    return (
        bool(checkpoint) and folder.is_dir() and sum(file.stat().st_size for file in folder.glob("*.safetensors")) < SMALL_BYTES
    )


def small_model(model: ModelConfig, *, checkpoint: str) -> ModelConfig:
    """A model of the same family and vocabulary with two thin layers; dense, or a mixture of experts, as the model is."""
    experts, linear = {}, {}
    if model.num_experts:
        per_token = min(model.num_experts_per_token, EXPERTS_PER_TOKEN)
        experts = {"num_experts": NUM_EXPERTS, "num_experts_per_token": per_token, "moe_intermediate_size": EXPERT_SIZE}
    if model.linear_attention.full_every:
        heads = {"num_key_heads": NUM_HEADS, "num_value_heads": 2 * NUM_HEADS, "full_every": NUM_LAYERS}
        widths = {"key_head_dim": HEAD_DIM, "value_head_dim": HEAD_DIM}
        linear = {"linear_attention": replace(model.linear_attention, **heads, **widths)}
    return replace(
        model,
        checkpoint=checkpoint,
        num_layers=NUM_LAYERS,
        hidden_size=HIDDEN_SIZE,
        num_attention_heads=NUM_HEADS,
        num_key_value_heads=min(NUM_HEADS, 1 if model.num_key_value_heads < model.num_attention_heads else NUM_HEADS),
        head_dim=HEAD_DIM,
        intermediate_size=2 * HIDDEN_SIZE,
        **experts,
        **linear,
    )


def own_positions(model: ModelConfig) -> int:
    """The positions of the checkpoint itself, before `rope_parameters` scale them."""
    rope = model.rope_parameters
    return rope.get("original_max_position_embeddings", model.max_position_embeddings) if rope else model.max_position_embeddings


def _trainer(trainer: TrainerConfig) -> TrainerConfig:
    steps = min(trainer.num_steps, NUM_STEPS)
    return replace(
        trainer,
        num_steps=steps,
        warmup_steps=min(trainer.warmup_steps, steps),
        num_updates_per_batch=min(trainer.num_updates_per_batch, 2),
        precision=Precision.float32,
        save_every=min(trainer.save_every, steps),
        evaluate_every=min(trainer.evaluate_every, 1),
        megatron_args={},
        **{name: 1 for name in _parallel_sizes()},
    )


def _parallel_sizes() -> list[str]:
    return [found.name for found in fields(TrainerConfig) if found.name.endswith("parallel_size")]


def _rollout(rollout: RolloutConfig) -> RolloutConfig:
    return replace(
        rollout,
        num_prompts=min(rollout.num_prompts, NUM_PROMPTS),
        num_samples_per_prompt=min(rollout.num_samples_per_prompt, NUM_SAMPLES),
        num_oversampled_prompts=min(rollout.num_oversampled_prompts, 1),
        num_oversampled_samples_per_prompt=min(rollout.num_oversampled_samples_per_prompt, 1),
        min_rollouts_per_group=min(rollout.min_rollouts_per_group, NUM_SAMPLES),
        num_workers=1,
    )


def _evaluation(evaluation: EvaluationConfig, *, least: int) -> EvaluationConfig:
    """Every row before and after training, in the fewest runs that pass@k allows, so that one command fills the table.

    Up to `least` runs of the experiment are kept, because without training they are all that its agents do.
    """
    runs = max([least, *evaluation.pass_at])
    return replace(
        evaluation,
        num_runs=min(evaluation.num_runs, runs),
        before=Before.full,
        extra_temperatures=evaluation.extra_temperatures[:1],
    )


def _served(config: RunConfig, shrunk: Shrunk, *, has_own: bool) -> dict[str, ServedModelConfig]:
    """The trained model on one server, and one more server behind the names of all frozen models.

    Frozen models that are small and local keep servers of their own.
    """
    share = CACHE_BYTES / memory_bytes()
    found: dict[str, ServedModelConfig] = {}
    behind: list[str] = []
    for name, served in config.serving.models.items():
        model = replace(served, speculative=SpeculativeConfig())  # a rehearsal says which tokens are sampled
        plain = replace(
            model, num_replicas=1, groups={}, tensor_parallel_size=1, max_num_seqs=min(model.max_num_seqs, MOST_SEQUENCES)
        )
        if model.trained or (has_own and not model.urls and (model.checkpoint is None or is_small(model.checkpoint))):
            args = model.vllm_args if has_own else {}
            found[name] = replace(plain, port=0, gpu_memory_utilization=share, vllm_args=args)
            continue
        behind.append(name)
        found[name] = model
    if not behind:
        return found
    port = free_port(LOOPBACK, 0)
    most = max(found[name].max_model_len for name in behind)
    for name in behind:
        found[name] = _behind(found[name], port, name)
        if name in config.algorithm.distillation.teachers:  # whose tokenizer is compared with the student's
            found[name].checkpoint = config.model.checkpoint if has_own else str(model_folder(config))
    checkpoints = [
        f"{name} ({config.serving.models[name].checkpoint or config.serving.models[name].served_name or 'untrained'})"
        for name in behind
    ]
    shrunk.replaced.append(f"frozen models: one server of the random model answers for {', '.join(checkpoints)}")
    args = {"served_model_name": behind}
    found[FROZEN] = ServedModelConfig(
        port=port, max_model_len=most, gpu_memory_utilization=share, vllm_args=args, max_num_seqs=MOST_SEQUENCES
    )
    return found


def _behind(model: ServedModelConfig, port: int, name: str) -> ServedModelConfig:
    """A frozen model whose name the common server answers to, in the way in which it is called."""
    address = f"http://{LOOPBACK}:{port}"
    is_chat = model.api.value == "chat"
    chat = replace(model.chat, api_key_variable=None, max_requests_per_minute=None) if is_chat else model.chat
    return ServedModelConfig(
        urls=[f"{address}/v1" if is_chat else address],
        api=model.api,
        chat=chat,
        served_name=name,
        sampling=model.sampling,
        chat_template_args=model.chat_template_args,
        tool_parser=model.tool_parser,
        reasoning_parser=model.reasoning_parser,
        max_model_len=model.max_model_len,
    )
