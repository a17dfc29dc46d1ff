"""`LockstepEngine`: whole batches through the verbs without a driver, for benchmarks, checks and tests.

Each rank takes over the driver's part.

engine = LockstepEngine(config)
metrics = engine.train([[Sample(…), …], …], step=0)     # one optimizer step for each inner list
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch.distributed as dist
from megatron.core import parallel_state

from vime.algorithm.algorithm import Algorithm, Question
from vime.algorithm.choice import algorithm_of
from vime.algorithm.critic import Critic
from vime.algorithm.policy_gradient import PolicyGradient
from vime.config import RolloutDetail
from vime.trainer import metrics
from vime.trainer.engine import Engine
from vime.trainer.schedule import learning_rate
from vime.trainer.shard import PackedUpdate, Shard
from vime.types import Sample


class LockstepEngine(Engine):
    """An engine that trains on whole batches. All ranks get the same sequences, with the advantages of their rollouts."""

    def __init__(self, config: Any, *, beside: Engine | None = None, critic: Critic | None = None) -> None:
        super().__init__(config, beside=beside, critic=critic)
        self._trained: list[tuple[PackedUpdate, Any]] = []
        self.before_step: Callable[[], Any] = lambda: None
        """Called between the gradient of an update and its step."""

    def train(self, updates: Sequence[Sequence[Sample]], step: int) -> dict[str, float]:
        """Trains on a batch as `vime.loop` does; returns its metrics."""
        algorithm = self.algorithm if self.algorithm.is_critic else algorithm_of(self.config)
        num_epochs = self.config.trainer.num_epochs_per_batch
        samples, found = self._finished(algorithm, [list(update) for update in updates if update], step)
        packed = [PackedUpdate.of(self.config, algorithm, update, version=step) for update in samples]
        self._trained = []
        shards = [update.shard(parallel_state.get_data_parallel_rank()) for update in packed]
        for number, shard in enumerate(shards):
            is_present = number == 0 and num_epochs == 1
            if needs := algorithm.needs_of_loss(is_present=is_present):
                shards[number] = shard.with_known(self.forward(shard, needs))
        results = []
        for epoch in range(num_epochs):
            for update, shard in zip(packed, shards):
                results.append(self._update(algorithm, update, shard, step, is_first=epoch == 0))
        return found | metrics.of_batch(results, shards, self.config.trainer)

    def answer(self, question: Question, *, version: int) -> list[dict[str, np.ndarray]]:
        """See `TrainerGroup.answer`."""
        about = {"version": version, "columns": question.columns, "with_logprobs": False}
        packed = PackedUpdate(self.config, question.sequences, **about)
        return self._by_sample(packed, self.forward(packed.shard(parallel_state.get_data_parallel_rank()), [question.need]))

    def trained_logprobs(self) -> dict[tuple[int, int], np.ndarray]:
        """Logprobs of the trained tokens of the last batch, by update and place of the sequence, if the run records tokens."""
        return {
            (number, place): columns["trained"]
            for number, (packed, columns) in enumerate(self._trained)
            for place, columns in enumerate(self._by_sample(packed, columns))
            if columns
        }

    def _update(self, algorithm: Algorithm, update: PackedUpdate, shard: Shard, step: int, *, is_first: bool) -> dict[str, float]:
        records = self.config.logger.rollouts is RolloutDetail.tokens and not algorithm.is_supervised
        passed = self.forward_backward(shard, algorithm, keep=is_first and records)
        if is_first and records:
            self._trained.append((update, passed.columns))
        if passed.is_skipped:
            return metrics.of_update(passed.sums, passed.sums, shard)
        self.before_step()
        return metrics.of_update(
            passed.sums, self.step(optimizer={"lr": learning_rate(self.config.trainer, step)}, step=step), shard
        )

    def _finished(
        self, algorithm: Algorithm, updates: list[list[Sample]], step: int
    ) -> tuple[list[list[Sample]], dict[str, float]]:
        """The sequences with a policy gradient's penalty and whitening, which need all ranks' columns; given ones stay."""
        if not isinstance(algorithm, PolicyGradient) or not updates:
            return updates, {}
        needs = [need for need in algorithm.needs_before if need.column not in updates[0][0].columns]
        if needs:
            for number, samples in enumerate(updates):
                packed = PackedUpdate.of(self.config, algorithm, samples, version=step, has_advantages=False)
                columns = self.forward(packed.shard(parallel_state.get_data_parallel_rank()), needs)
                known = self._by_sample(packed, columns)
                updates[number] = [sample.with_columns(**found) for sample, found in zip(samples, known)]
        if not (algorithm.needs_before or algorithm.config.whitening):
            return updates, {}
        values, found = algorithm.finished([sample for samples in updates for sample in samples])
        advantages = iter(values)
        return [[sample.with_columns(advantage=next(advantages)) for sample in samples] for samples in updates], found

    def _by_sample(self, packed: PackedUpdate, columns: Any) -> list[dict[str, np.ndarray]]:
        """Columns by sequence, from all data-parallel ranks."""
        gathered: list[Any] = [None] * dist.get_world_size()
        mine = (parallel_state.get_data_parallel_rank(), columns) if columns is not None and self.answers else None
        dist.all_gather_object(gathered, mine)
        return packed.by_sample([columns for _, columns in sorted(filter(None, gathered), key=lambda pair: pair[0])])
