"""Modes of generation that cannot work together."""

from vime.config import AlgorithmName, Baseline, RunConfig
from vime.errors import Problem
from vime.hooks import check_hook, load_hook


def partial(config: RunConfig) -> list[Problem]:
    """Groups that go on in the next batch have older tokens, and there are some only if more run than a batch takes."""
    rollout, problems = config.rollout, []
    if not rollout.partial_rollouts:
        return []
    if rollout.max_staleness < 1:
        remedy = "tokens of the batch before are one version old: give rollout.max_staleness=1 or more, or switch this off"
        problems.append(Problem(key="rollout.partial_rollouts", value=True, remedy=remedy))
    if rollout.num_oversampled_prompts < 1:
        remedy = "no group is left over at the end of a batch: give rollout.num_oversampled_prompts=1 or more, or switch this off"
        problems.append(Problem(key="rollout.partial_rollouts", value=True, remedy=remedy))
    return problems


def compared(config: RunConfig) -> list[Problem]:
    """With a baseline, a group has at least two rollouts to compare."""
    algorithm = config.algorithm
    compares = algorithm.name is not AlgorithmName.sft and algorithm.advantage is None and algorithm.baseline is not Baseline.none
    if not compares or config.rollout.num_samples_per_prompt != 1:
        return []
    remedy = "give at least 2: a rollout is compared with the others of its group, so a single one has no advantage"
    return [Problem(key="rollout.num_samples_per_prompt", value=1, remedy=remedy)]


def group_sizes(config: RunConfig) -> list[Problem]:
    """A group can be as large as it must be, and a function of the user decides itself which rollouts it returns."""
    rollout, problems = config.rollout, []
    if rollout.min_rollouts_per_group > rollout.num_samples_per_prompt >= 1:
        remedy = f"give at most rollout.num_samples_per_prompt={rollout.num_samples_per_prompt}"
        problems.append(Problem(key="rollout.min_rollouts_per_group", value=rollout.min_rollouts_per_group, remedy=remedy))
    if rollout.group_function and rollout.num_oversampled_samples_per_prompt:
        key, value = "rollout.num_oversampled_samples_per_prompt", rollout.num_oversampled_samples_per_prompt
        remedy = f"rollout.group_function={rollout.group_function} runs the whole group itself: give 0"
        problems.append(Problem(key=key, value=value, remedy=remedy))
    return problems


def own_producer(config: RunConfig) -> list[Problem]:
    """A producer of the user decides what the built-in one's modes decide, so these are off; and it can be resumed."""
    rollout = config.rollout
    if rollout.producer is None:
        return []
    modes = {
        "filter": rollout.filter,
        "partial_rollouts": rollout.partial_rollouts,
        "num_oversampled_prompts": rollout.num_oversampled_prompts,
        "num_oversampled_samples_per_prompt": rollout.num_oversampled_samples_per_prompt,
    }
    remedy = f"is a mode of the built-in producer, and rollout.producer={rollout.producer} stands in its place: remove it"
    problems = [Problem(key=f"rollout.{name}", value=value, remedy=remedy) for name, value in modes.items() if value]
    fits = not check_hook("rollout.producer", rollout.producer)
    if config.resume and rollout.max_staleness and fits and not hasattr(load_hook(rollout.producer), "load"):
        remedy = "prompts that it had drawn for later batches would be lost: give its class state and load, or max_staleness=0"
        problems.append(Problem(key="rollout.producer", value=rollout.producer, remedy=remedy))
    return problems


def kept_cache(config: RunConfig) -> list[Problem]:
    """On-policy, nothing is started under old weights and goes on."""
    if not config.serving.keep_cache or (config.rollout.max_staleness >= 1 and config.rollout.in_flight_updates):
        return []
    remedy = (
        "nothing goes on over a sync: give rollout.max_staleness=1 or more and rollout.in_flight_updates=true, or switch this off"
    )
    return [Problem(key="serving.keep_cache", value=True, remedy=remedy)]
