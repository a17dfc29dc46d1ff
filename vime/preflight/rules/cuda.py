"""Layouts that the trainer does not support on GPUs."""

from vime.config import RunConfig
from vime.errors import Problem
from vime.trainer.cuda_limits import cuda_problems


def layouts(config: RunConfig) -> list[Problem]:
    """Layouts that are refused on every GPU."""
    return cuda_problems(config.trainer) if config.cluster.gpus_per_node else []
