"""What the trainer cannot be trusted with on GPUs; where Transformer Engine decides, this machine is asked for it."""

from importlib.util import find_spec

from vime.config import RunConfig
from vime.errors import Problem
from vime.trainer.cuda_limits import cuda_problems


def layouts(config: RunConfig) -> list[Problem]:
    """Layouts that are refused on any GPU."""
    return cuda_problems(config.trainer, has_transformer_engine=None) if config.cluster.gpus_per_node else []


def transformer_engine(config: RunConfig) -> list[Problem]:
    """Layouts that stand or fall with Transformer Engine; on a running Ray cluster each trainer rank looks for it itself."""
    if config.cluster.gpus_per_node == 0 or config.cluster.ray_address is not None:
        return []
    return cuda_problems(config.trainer, has_transformer_engine=find_spec("transformer_engine") is not None)
