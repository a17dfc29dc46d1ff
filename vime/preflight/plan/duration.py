"""The section Time of a plan: as earlier runs of this name went on this machine, or else the arithmetic of the training."""

from pathlib import Path
from statistics import median

from vime.cluster.layout import world_size
from vime.config import OWN_MODEL, AlgorithmName, Before, Mode, RunConfig
from vime.evaluation.conditions import TRAINED, num_item_runs, rows_of
from vime.files.provenance import plain
from vime.memory.activations import recomputes
from vime.memory.tokens import batch_tokens
from vime.model.size import num_expert_parameters, num_parameters
from vime.report.metrics_file import read_metrics
from vime.report.run_directory import CONFIG, read_config
from vime.report.settings import differences, flatten
from vime.report.step_line import duration

FORWARD, FORWARD_AND_BACKWARD = 2, 6
"""Floating-point operations for each parameter and token: of a forward pass, and of one that is trained (4 are backward)."""
RECOMPUTED = 2
"""Further operations, as many as in the forward pass, for activations that are computed a second time."""
SPEED = ("trainer.", "rollout.", "serving.", "model.", "cluster.", "method.", "algorithm.name", "algorithm.critic.", "data.train")
"""Settings that change the time of a step; runs that differ in them are not used as a measure."""
EACH = 1e14
"""Operations per second for which a time is shown without a measurement: 100 TFLOP/s, so that others follow by division."""


def time(config: RunConfig) -> list[str]:
    """The time that a step and the run take, and its source; the cost of the evaluation before the first step."""
    steps = config.trainer.num_steps
    lines = before_training(config)
    if (found := measured_seconds(config)) is not None:
        seconds, folder = found
        told = f"a step took {seconds:.1f} s in {folder}: {steps} steps about {duration(seconds * steps)}, without evaluations"
        return [told, *lines]
    flops, num_ranks = step_flops(config), world_size(config.trainer)
    told = (
        f"training computes at most {flops:.1e} operations a step, if every sequence fills its context (arithmetic, not measured)"
    )
    if config.cluster.gpus_per_node:
        seconds = flops / (EACH * num_ranks)
        told += f": {duration(seconds)} at 100 TFLOP/s on each of {num_ranks} GPU(s); generation comes on top"
    else:
        told += "; no earlier run of this name has these settings: the first lines of a run show its ETA"
    return [told, *lines]


def before_training(config: RunConfig) -> list[str]:
    """The number of rollouts that are evaluated before step 1, beside those of a training step."""
    if config.mode is Mode.eval or config.evaluation.before is not Before.full or config.algorithm.name is AlgorithmName.sft:
        return []
    rows = [row for row in rows_of(config) if row != TRAINED]
    total = num_item_runs(config, rows)
    a_step = config.rollout.num_prompts * config.rollout.num_samples_per_prompt
    if total == 0:
        return []
    if total is None:
        return ["before step 1: all items of the data sets are evaluated; evaluation.before=none leaves that out"]
    return [
        f"before step 1: {total:,} rollouts are evaluated ({', '.join(rows)}), as many as {total / a_step:.1f} steps generate; "
        "evaluation.before=none leaves that out"
    ]


def step_flops(config: RunConfig) -> float:
    """The most floating-point operations of one step's training, without attention: active parameters times tokens.

    A critic with a model of its own adds a pass for the values, and its own passes with gradients.
    """
    model = config.model
    experts = num_expert_parameters(model)
    active = num_parameters(model) - experts
    if model.num_experts:
        active += experts * model.num_experts_per_token // model.num_experts
    tokens = batch_tokens(config)
    each, critic = FORWARD_AND_BACKWARD + RECOMPUTED * recomputes(config.trainer), config.algorithm.critic
    passes = each if critic.place not in OWN_MODEL else each * (1 + critic.num_epochs_per_batch) + FORWARD
    return float(active) * tokens * passes


def measured_seconds(config: RunConfig) -> tuple[float, Path] | None:
    """The median step of the newest run of this name with the same settings of speed, and its folder."""
    wanted = flatten(plain(config))
    for folder in sorted(Path(str(config.output_dir)).parent.glob(f"*/{CONFIG}"), reverse=True):
        run = folder.parent
        differ = differences([flatten(read_config(run)), wanted])
        rows = [row["time/step_seconds"] for row in read_metrics(run / "metrics.jsonl") if "time/step_seconds" in row]
        if len(rows) > 1 and not any(key.startswith(SPEED) and key != "trainer.num_steps" for key in differ):
            return median(rows[1:]), run
    return None
