"""Batch arithmetic, the schedule of the learning rate, and what is evaluated."""

from vime.config import AlgorithmName, RunConfig, Schedule
from vime.errors import Problem

ROWS = ("single_turn", "scaffold", "trained")
"""Rows that an evaluation can measure."""


def updates(config: RunConfig) -> list[Problem]:
    """Every optimizer step has a rollout for each data-parallel rank."""
    trainer, rollout = config.trainer, config.rollout
    rollouts = rollout.num_prompts * rollout.num_samples_per_prompt
    if config.algorithm.name is AlgorithmName.sft or min(trainer.num_updates_per_batch, trainer.data_parallel_size) < 1:
        return []
    most = max(rollouts // trainer.data_parallel_size, 1)
    if rollouts < 1 or trainer.num_updates_per_batch <= most:
        return []
    remedy = (
        f"rollout.num_prompts={rollout.num_prompts} × rollout.num_samples_per_prompt={rollout.num_samples_per_prompt} are "
        f"{rollouts} rollouts, and every update needs one for each of trainer.data_parallel_size={trainer.data_parallel_size} "
        f"ranks: give at most {most}, or make the batch larger"
    )
    return [Problem(key="trainer.num_updates_per_batch", value=trainer.num_updates_per_batch, remedy=remedy)]


def schedule(config: RunConfig) -> list[Problem]:
    """The warm-up ends within the run, and the learning rate does not rise to its minimum."""
    trainer, problems = config.trainer, []
    if trainer.warmup_steps > trainer.num_steps >= 1:
        remedy = f"the run has trainer.num_steps={trainer.num_steps}: give at most that many"
        problems.append(Problem(key="trainer.warmup_steps", value=trainer.warmup_steps, remedy=remedy))
    if trainer.lr_schedule is not Schedule.constant and trainer.min_lr > trainer.lr:
        remedy = f"the schedule ends here: give at most trainer.lr={trainer.lr:g}"
        problems.append(Problem(key="trainer.min_lr", value=trainer.min_lr, remedy=remedy))
    return problems


def evaluation_rows(config: RunConfig) -> list[Problem]:
    """Only rows that exist are asked for, each once."""
    rows = config.evaluation.rows
    unknown = [row for row in rows if row not in ROWS]
    if not unknown and len(set(rows)) == len(rows):
        return []
    what = f"there is no row {', '.join(map(repr, unknown))}" if unknown else "a row stands twice"
    return [Problem(key="evaluation.rows", value=rows, remedy=f"{what}: give some of {', '.join(ROWS)}")]
