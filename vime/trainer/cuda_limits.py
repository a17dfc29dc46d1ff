"""Settings that the trainer refuses on CUDA: layouts that are known to fail there, or that have been tested on gloo only."""

from vime.config import TrainerConfig
from vime.errors import Problem


def cuda_problems(trainer: TrainerConfig) -> list[Problem]:
    """Settings that cannot be trusted on CUDA."""
    problems = []
    if trainer.virtual_pipeline_parallel_size > 1:
        remedy = (
            "interleaved pipelines need messages that tell activations from gradients, which are tested on gloo alone, never on "
            "NCCL: use 1"
        )
        problems.append(
            Problem(key="trainer.virtual_pipeline_parallel_size", value=trainer.virtual_pipeline_parallel_size, remedy=remedy)
        )
    return problems
