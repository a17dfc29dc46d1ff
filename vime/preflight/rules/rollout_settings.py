"""Settings of rollout generation that contradict each other."""

from vime.config import AlgorithmName, RunConfig
from vime.errors import Problem
from vime.hooks import check_hook, load_hook
from vime.preflight.rules.objective import WITHOUT_GROUP


def partial(config: RunConfig) -> list[Problem]:
    """Partial rollouts need staleness, because they have older tokens, and more groups than a batch takes."""
    rollout, problems = config.rollout, []
    if not rollout.partial_rollouts:
        return []
    if rollout.max_staleness < 1:
        remedy = (
            "rollouts that continue in the next batch have tokens of older weights: set rollout.max_staleness=1 or more, or "
            "false here"
        )
        problems.append(Problem(key="rollout.partial_rollouts", value=True, remedy=remedy))
    if rollout.num_oversampled_prompts < 1:
        remedy = (
            "without oversampling no group is left at the end of a batch: set rollout.num_oversampled_prompts=1 or more, or "
            "false here"
        )
        problems.append(Problem(key="rollout.partial_rollouts", value=True, remedy=remedy))
    return problems


def compared(config: RunConfig) -> list[Problem]:
    """With a baseline, a group has at least two rollouts to compare."""
    algorithm = config.algorithm
    is_own = algorithm.advantage is not None or algorithm.object is not None
    compares = algorithm.name is not AlgorithmName.sft and not is_own and algorithm.baseline not in WITHOUT_GROUP
    is_alone = bool(algorithm.distillation.teachers) and not algorithm.distillation.reward_coefficient
    compares = compares and not algorithm.nested_seats and not is_alone
    if not compares or config.rollout.num_samples_per_prompt != 1:
        return []
    remedy = "use at least 2: a rollout is compared with the others of its group, so a single one has no advantage"
    return [Problem(key="rollout.num_samples_per_prompt", value=1, remedy=remedy)]


def group_sizes(config: RunConfig) -> list[Problem]:
    """The least size of a group is at most its size, and only the built-in function oversamples groups."""
    rollout, problems = config.rollout, []
    if rollout.min_rollouts_per_group > rollout.num_samples_per_prompt >= 1:
        remedy = f"must be at most rollout.num_samples_per_prompt={rollout.num_samples_per_prompt}"
        problems.append(Problem(key="rollout.min_rollouts_per_group", value=rollout.min_rollouts_per_group, remedy=remedy))
    if rollout.group_function and rollout.num_oversampled_samples_per_prompt:
        key, value = "rollout.num_oversampled_samples_per_prompt", rollout.num_oversampled_samples_per_prompt
        remedy = f"rollout.group_function={rollout.group_function} runs the whole group itself: use 0"
        problems.append(Problem(key=key, value=value, remedy=remedy))
    return problems


def own_producer(config: RunConfig) -> list[Problem]:
    """With a user's producer the modes of the built-in one are off, and a run that may be resumed can restore its state."""
    rollout = config.rollout
    if rollout.producer is None:
        return []
    modes = {
        "filter": rollout.filter,
        "partial_rollouts": rollout.partial_rollouts,
        "num_oversampled_prompts": rollout.num_oversampled_prompts,
        "num_oversampled_samples_per_prompt": rollout.num_oversampled_samples_per_prompt,
    }
    remedy = f"is a mode of the built-in producer, which rollout.producer={rollout.producer} replaces: remove this"
    problems = [Problem(key=f"rollout.{name}", value=value, remedy=remedy) for name, value in modes.items() if value]
    fits = not check_hook("rollout.producer", rollout.producer)
    if config.resume and rollout.max_staleness and fits and not hasattr(load_hook(rollout.producer), "load"):
        remedy = (
            "a resumed run would lose the prompts that it had drawn for later batches: give its class the methods state and "
            "load, or rollout.max_staleness=0"
        )
        problems.append(Problem(key="rollout.producer", value=rollout.producer, remedy=remedy))
    return problems


def kept_cache(config: RunConfig) -> list[Problem]:
    """`serving.keep_cache` needs requests that continue across a weight sync."""
    if not config.serving.keep_cache or (config.rollout.max_staleness >= 1 and config.rollout.in_flight_updates):
        return []
    remedy = (
        "no request continues across a weight sync: set rollout.max_staleness=1 or more and rollout.in_flight_updates=true, or "
        "false here"
    )
    return [Problem(key="serving.keep_cache", value=True, remedy=remedy)]
