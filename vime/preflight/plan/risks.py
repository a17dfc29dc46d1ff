"""Settings that a run may have, and that have been seen to lose a policy; a plan and the first lines of a run name them."""

from vime.config import AlgorithmName, CorrectionMode, RunConfig, Schedule


def risks(config: RunConfig) -> list[str]:
    """A sentence for each risk, with what to do about it."""
    algorithm, bound = config.algorithm, config.rollout.max_staleness
    is_own = algorithm.object is not None or algorithm.loss is not None
    if algorithm.name is AlgorithmName.sft or is_own or bound <= 1:
        return []
    is_bounded = algorithm.score_centering or algorithm.correction.mode is not CorrectionMode.none
    if is_bounded or config.trainer.lr_schedule is not Schedule.constant:
        return []
    return [
        f"with a constant learning rate and rollout.max_staleness={bound} a policy may be lost late in training "
        "(results/staleness_long_tail.md): set trainer.lr_schedule=linear, or rollout.max_staleness=1"
    ]
