"""Layouts that the trainer does not support on GPUs, some of them only without Transformer Engine."""

from importlib.util import find_spec

from vime.config import RunConfig
from vime.errors import Problem
from vime.trainer.cuda_limits import cuda_problems


def layouts(config: RunConfig) -> list[Problem]:
    """Layouts that are refused on every GPU."""
    return cuda_problems(config.trainer, has_transformer_engine=None) if config.cluster.gpus_per_node else []


def transformer_engine(config: RunConfig) -> list[Problem]:
    """Layouts that need Transformer Engine on this machine; on a running Ray cluster each trainer rank checks for itself."""
    if config.cluster.gpus_per_node == 0 or config.cluster.ray_address is not None:
        return []
    return cuda_problems(config.trainer, has_transformer_engine=find_spec("transformer_engine") is not None)
