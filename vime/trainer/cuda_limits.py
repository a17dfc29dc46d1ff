"""Settings that the trainer refuses on CUDA: layouts that are known to fail there, or that have been tested on gloo only."""

from vime.config import Precision, TrainerConfig
from vime.errors import Problem


def cuda_problems(trainer: TrainerConfig, *, has_transformer_engine: bool | None) -> list[Problem]:
    """Settings that cannot be trusted on CUDA; `has_transformer_engine` is None where the trainer's machine is not known yet."""
    problems = []
    if trainer.virtual_pipeline_parallel_size > 1:
        remedy = (
            "interleaved pipelines need messages that tell activations from gradients, which are tested on gloo alone, never on "
            "NCCL: use 1"
        )
        problems.append(
            Problem(key="trainer.virtual_pipeline_parallel_size", value=trainer.virtual_pipeline_parallel_size, remedy=remedy)
        )
    if trainer.context_parallel_size > 1 and has_transformer_engine is False:
        remedy = (
            "without Transformer Engine, attention over context-parallel ranks holds the scores of all pairs of tokens: "
            "install transformer-engine where the trainer runs, or use 1"
        )
        problems.append(Problem(key="trainer.context_parallel_size", value=trainer.context_parallel_size, remedy=remedy))
    if trainer.precision is Precision.float32 and has_transformer_engine:
        remedy = "Transformer Engine's attention kernels for packed sequences take 16-bit values only: use bfloat16"
        problems.append(Problem(key="trainer.precision", value=trainer.precision.value, remedy=remedy))
    return problems
