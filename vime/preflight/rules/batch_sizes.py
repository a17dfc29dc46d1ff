"""The sizes of batches, the learning rate schedule, the rows of an evaluation, and the best checkpoint."""

from vime.config import AlgorithmName, RunConfig, Schedule
from vime.errors import Problem
from vime.evaluation.conditions import AT, LABELS, SCAFFOLD, SINGLE_TURN


def updates(config: RunConfig) -> list[Problem]:
    """Every optimizer step has at least one rollout for each data-parallel rank."""
    trainer, rollout = config.trainer, config.rollout
    rollouts = rollout.num_prompts * rollout.num_samples_per_prompt
    if config.algorithm.name is AlgorithmName.sft or min(trainer.num_updates_per_batch, trainer.data_parallel_size) < 1:
        return []
    most = max(rollouts // trainer.data_parallel_size, 1)
    if rollouts < 1 or trainer.num_updates_per_batch <= most:
        return []
    remedy = (
        f"rollout.num_prompts={rollout.num_prompts} × rollout.num_samples_per_prompt={rollout.num_samples_per_prompt} are "
        f"{rollouts} rollouts, and every update needs one for each of the "
        f"trainer.data_parallel_size={trainer.data_parallel_size} "
        f"ranks: use at most {most}, or make the batch larger"
    )
    return [Problem(key="trainer.num_updates_per_batch", value=trainer.num_updates_per_batch, remedy=remedy)]


def schedule(config: RunConfig) -> list[Problem]:
    """The warm-up ends within the run, and the minimum of the learning rate is not above the learning rate."""
    trainer, problems = config.trainer, []
    if trainer.warmup_steps > trainer.num_steps >= 1:
        remedy = f"must be at most trainer.num_steps={trainer.num_steps}, the length of the run"
        problems.append(Problem(key="trainer.warmup_steps", value=trainer.warmup_steps, remedy=remedy))
    if trainer.lr_schedule is not Schedule.constant and trainer.min_lr > trainer.lr:
        remedy = f"the schedule ends at this value: use at most trainer.lr={trainer.lr:g}"
        problems.append(Problem(key="trainer.min_lr", value=trainer.min_lr, remedy=remedy))
    return problems


def evaluation_rows(config: RunConfig) -> list[Problem]:
    """The rows of an evaluation exist, are given once each, and name served models."""
    names, baselines = config.evaluation.rows, {name for name, model in config.serving.models.items() if not model.trained}
    known = [*LABELS, *(f"{way}{AT}{name}" for name in sorted(baselines) for way in (SINGLE_TURN, SCAFFOLD))]
    unknown = [name for name in names if name not in known]
    if not unknown and len(set(names)) == len(names):
        return []
    what = f"there is no row {', '.join(map(repr, unknown))}" if unknown else "a row is given twice"
    if any(AT in name for name in unknown):
        what += " (a baseline is single_turn@NAME or scaffold@NAME, with NAME one of serving.models that is not trained)"
    return [Problem(key="evaluation.rows", value=names, remedy=f"{what}: use some of {', '.join(known)}")]


def pass_at(config: RunConfig) -> list[Problem]:
    """pass@k and pass^k need at least k runs."""
    evaluation = config.evaluation
    wrong = [k for k in evaluation.pass_at if k > evaluation.num_runs]
    remedy = f"pass@k needs k runs: use values up to evaluation.num_runs={evaluation.num_runs}, or raise evaluation.num_runs"
    return [Problem(key="evaluation.pass_at", value=evaluation.pass_at, remedy=remedy)] if wrong else []


def best_checkpoint(config: RunConfig) -> list[Problem]:
    """The metric of the best checkpoint is measured during training, at steps that are saved."""
    trainer, metric = config.trainer, config.trainer.keep_best
    if metric is None:
        return []
    known = ["evaluation", *(f"evaluation/{dataset.name}" for dataset in config.data.evaluation)]
    if config.algorithm.name is AlgorithmName.sft:
        remedy = "algorithm=sft evaluates nothing during training: remove this"
    elif metric not in known or len(known) == 1:
        remedy = (
            f"use one of {', '.join(known)}"
            if len(known) > 1
            else "data.evaluation is empty, so nothing measures it: remove this"
        )
    elif trainer.evaluate_every < 1:
        remedy = "nothing is evaluated during training: set trainer.evaluate_every to a multiple of trainer.save_every"
    elif trainer.save_every >= 1 and trainer.evaluate_every % trainer.save_every:
        remedy = (
            f"every evaluated step must be saved: make trainer.evaluate_every={trainer.evaluate_every} a multiple of "
            f"trainer.save_every={trainer.save_every}"
        )
    else:
        return []
    return [Problem(key="trainer.keep_best", value=metric, remedy=remedy)]
