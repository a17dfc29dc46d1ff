"""The part of the model and of the data that each trainer rank holds, in Megatron's order: tensor, context, data, pipeline.

The tensor rank changes fastest. Experts have their own order: expert parallelism, then copies of experts, then the pipeline.
"""

from dataclasses import dataclass

from vime.config import TrainerConfig

FIRST_STAGE, LAST_STAGE = "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage"
"""Fields of Megatron's configuration that give the first or last pipeline stage another number of layers than the rest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """Position of a rank in each kind of parallelism.

    Example: with tensor and pipeline parallel sizes of 2 and `data_parallel_size=3`, rank 9 is
    `Position(tensor=1, context=0, data=1, pipeline=1, expert=0)`.
    """

    tensor: int
    context: int
    data: int
    pipeline: int
    expert: int


def world_size(trainer: TrainerConfig) -> int:
    """Number of trainer ranks; expert parallelism reuses the ranks of the other kinds and adds none."""
    return stage_size(trainer) * trainer.pipeline_parallel_size


def stage_size(trainer: TrainerConfig) -> int:
    """Number of ranks in one pipeline stage."""
    return trainer.tensor_parallel_size * trainer.context_parallel_size * trainer.data_parallel_size


def position_of(rank: int, trainer: TrainerConfig) -> Position:
    """The position of a rank in each kind of parallelism."""
    tensor, context = trainer.tensor_parallel_size, trainer.context_parallel_size
    in_stage = rank % stage_size(trainer)
    return Position(
        tensor=rank % tensor,
        context=rank // tensor % context,
        data=in_stage // (tensor * context),
        pipeline=rank // stage_size(trainer),
        expert=in_stage % trainer.expert_parallel_size,
    )


def splits_tokens(trainer: TrainerConfig) -> bool:
    """True if tensor-parallel ranks hold different tokens between attention and feed-forward."""
    return trainer.sequence_parallel and trainer.tensor_parallel_size > 1


def layers_of(stage: int, trainer: TrainerConfig, num_layers: int) -> list[range]:
    """Layers of a pipeline stage, from 0: one run, or one for each round of an interleaved pipeline."""
    stages, rounds = trainer.pipeline_parallel_size, trainer.virtual_pipeline_parallel_size
    ends = {0: trainer.megatron_args.get(FIRST_STAGE), stages - 1: trainer.megatron_args.get(LAST_STAGE)}
    fixed = {number: size for number, size in ends.items() if size}
    middle = (num_layers - sum(fixed.values())) // max(stages - len(fixed), 1)
    sizes = [fixed.get(number, middle) // rounds for number in range(stages)]
    starts = [turn * sum(sizes) + sum(sizes[:stage]) for turn in range(rounds)]
    return [range(start, start + sizes[stage]) for start in starts]


def num_copies(trainer: TrainerConfig) -> int:
    """Number of ranks that hold the same parameters apart from experts; the distributed optimizer is divided among them."""
    return trainer.data_parallel_size * trainer.context_parallel_size


def num_expert_copies(trainer: TrainerConfig) -> int:
    """Number of ranks that hold the same experts; their optimizer state is divided if that of the other parameters is."""
    return max(stage_size(trainer) // trainer.expert_parallel_size, 1) if num_copies(trainer) > 1 else 1
