"""The trainer's logprobs of the tokens that it trained, kept from the pass that trains them, for the record of rollouts.

They cost no pass of their own: only a copy of one number for each token, and only if `logger.rollouts` is `tokens`.
"""

from collections.abc import Callable

import numpy as np
import torch
from megatron.core import parallel_state

from vime.config import AlgorithmName, RolloutDetail, RunConfig
from vime.trainer.micro_batch import MicroBatches


class KeptLogprobs:
    """Of one batch, on this rank: the logprobs under the weights that each update began with."""

    def __init__(self, config: RunConfig) -> None:
        supervised = config.algorithm.name is AlgorithmName.sft
        self._is_on = config.logger.rollouts is RolloutDetail.tokens and not supervised
        self._updates: list[tuple[MicroBatches, list[torch.Tensor]]] = []

    def forget(self) -> None:
        """Drops the last batch."""
        self._updates = []

    def begin(self, batches: MicroBatches) -> Callable[[torch.Tensor], None] | None:
        """Begins the next update; what it returns is to be called with the logprobs [N] of each micro-batch."""
        if not self._is_on or parallel_state.get_tensor_model_parallel_rank() or parallel_state.get_context_parallel_rank():
            return None
        kept: list[torch.Tensor] = []
        self._updates.append((batches, kept))
        return kept.append

    def found(self) -> dict[tuple[int, int], np.ndarray]:
        """float32 logprobs of the trained tokens of each sample, by the number of its update and its place in it.

        Empty except on ranks that know them: of the last pipeline stage, the first of those that share its tokens.
        """
        found: dict[tuple[int, int], np.ndarray] = {}
        for update, (batches, kept) in enumerate(self._updates):
            for (indices, counts), values_N in zip(batches.layout(), kept):
                parts = np.split(values_N.float().cpu().numpy(), np.cumsum(counts)[:-1])
                found |= {(update, index): part for index, part in zip(indices, parts)}
        return found
