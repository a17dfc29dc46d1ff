"""One trainer rank without Ray: model, optimizer and reference model, and the calls on them.

All public methods are collectives: every rank of the world calls them in the same order.
"""

import logging
import time
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from megatron.core import parallel_state

from vime.algorithm.loss import policy_loss
from vime.config import AlgorithmName, BadUpdate, KLPlace, OldLogprobs, RunConfig
from vime.errors import ConfigError, TrainingError
from vime.hooks import load_hook
from vime.model.architecture import check_shape, checkpoint_folder, read_architecture
from vime.model.tokenizer import tokenizer_problems
from vime.trainer import bridge, checkpoint, manifest, metrics, parallel
from vime.trainer.advantage import finish_advantages
from vime.trainer.kept_logprobs import KeptLogprobs
from vime.trainer.micro_batch import MicroBatches
from vime.trainer.model import build_model, build_optimizer, wrap_model
from vime.trainer.objective import KnownLogprobs
from vime.trainer.offload import Offload
from vime.trainer.pending_save import PendingSave
from vime.trainer.reference import Reference
from vime.trainer.schedule import learning_rate
from vime.trainer.shard import PackedUpdate, RowShare, Shard
from vime.trainer.step import forward_logprobs, update
from vime.types import Integers, TrainSample

logger = logging.getLogger(__name__)

MAX_SKIPPED_IN_A_ROW = 10
"""After this many skipped updates in a row the run ends, because it no longer learns."""


class Engine:
    """The trained model on this rank, loaded from `config.model.checkpoint`; process groups exist already."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.source = checkpoint_folder(config.model.checkpoint)
        self.architecture = read_architecture(self.source, rope_parameters=config.model.rope_parameters)
        check_shape(self.architecture, config.model)
        if problems := tokenizer_problems(self.source, key="model.checkpoint", value=config.model.checkpoint):
            raise ConfigError(problems)
        self.model = build_model(self.architecture, config.trainer)
        bridge.load_hugging_face(self.model, self.architecture, self.source)
        self.wrapped = wrap_model(self.model, config.trainer)
        self.optimizer = build_optimizer(self.wrapped, config.trainer)
        self._offload = Offload(self.wrapped, self.optimizer)
        self._pending: PendingSave | None = None
        self._reference: Reference | None = None
        if config.algorithm.kl_coefficient and config.algorithm.name is not AlgorithmName.sft:
            self._reference = Reference(self.model)
        self._loss_function = load_hook(config.algorithm.loss) if config.algorithm.loss else policy_loss
        self._row_share = RowShare.of(config.trainer, context_rank=parallel_state.get_context_parallel_rank())
        supervised = config.algorithm.name is AlgorithmName.sft
        self._temperature = 1.0 if supervised else config.rollout.temperature
        self._skipped_in_a_row = 0
        self._kept = KeptLogprobs(config)
        self._training: Generator[None, None, dict[str, float]]
        """The batch at work, stopped before an optimizer step."""
        self._trained: dict[str, float] | None = None
        """Its metrics, once it has been trained on."""

    def train(self, updates: list[list[TrainSample]], step: int) -> dict[str, float]:
        """Packs the samples of one batch, one optimizer step per inner list, and trains on them; see `begin_training`."""
        rank = parallel_state.get_data_parallel_rank()
        self.begin_training(
            [PackedUpdate(self.config, samples, version=step).shard(rank) for samples in updates if samples], step
        )
        return self.finish_training()

    def begin_training(self, shards: list[Shard], step: int) -> None:
        """Computes the first gradient of one batch, of which this rank has `shards`, one per optimizer step.

        The weights stay as they are until `finish_training`, and may be exported or asked for logprobs in between. `step` sets
        the learning rate. Raises `TrainingError` if a loss or gradient is not finite; with `trainer.on_bad_update=skip` such an
        update is skipped and leaves the weights unchanged.
        """
        self._training, self._training_seconds = self._train(shards, step), 0.0
        self._num_tokens = self.config.trainer.num_epochs_per_batch * sum(shard.update_tokens for shard in shards)
        self._trained = self._until_next_step()

    def finish_training(self) -> dict[str, float]:
        """Makes the optimizer steps of the batch that was begun; returns metrics of the whole batch, over all ranks.

        A batch without samples changes nothing. Raises what `begin_training` raises.
        """
        while self._trained is None:
            self._trained = self._until_next_step()
        trained, self._trained = self._trained, None
        if not self._num_tokens:
            return trained
        seconds = self._training_seconds
        return trained | {"train/seconds": seconds, "train/tokens_per_second": self._num_tokens / seconds}

    def _until_next_step(self) -> dict[str, float] | None:
        """Trains on until the next optimizer step is to be made; returns the batch's metrics if there is none."""
        started = time.monotonic()
        try:
            next(self._training)
        except StopIteration as end:
            assert end.value is not None, "finish_training once for each begin_training, and not after an error"
            torch.cuda.synchronize()  # another process or stream may read the weights as soon as this returns
            return end.value
        finally:
            self._training_seconds += time.monotonic() - started
        return None

    def _train(self, shards: list[Shard], step: int) -> Generator[None, None, dict[str, float]]:
        """Trains on a batch, and yields before each optimizer step."""
        batches = [self._micro_batches(shard, only_trained=True) for shard in shards]
        self._kept.forget()
        if not batches:
            logger.warning("step %d: no samples to train on; the weights stay as they are", step)
            return {"train/num_samples": 0.0, "train/num_tokens": 0.0, "train/num_skipped_updates": 0.0}
        known = self._known_logprobs(batches)
        extra = finish_advantages(self.config.algorithm, batches, known)
        num_epochs, results = self.config.trainer.num_epochs_per_batch, []
        for epoch in range(num_epochs):
            for batch, of_batch in zip(batches, known):
                results.append((yield from self._update(batch, of_batch, step, is_first=not epoch)))
        return metrics.over_updates(results) | {
            **extra,
            "train/num_samples": float(num_epochs * sum(shard.update_samples for shard in shards)),
        }

    def _update(
        self, batch: MicroBatches, known: list[KnownLogprobs], step: int, *, is_first: bool
    ) -> Generator[None, None, dict[str, float]]:
        """One optimizer step, or a counted skip if its numbers are not finite and the configuration allows it.

        Of the first step on an update (`is_first`) the logprobs are kept.
        """
        try:
            result = yield from update(
                self.wrapped,
                self.optimizer,
                self.config.algorithm,
                batch,
                known=known,
                temperature=self._temperature,
                lr=learning_rate(self.config.trainer, step),
                step=step,
                loss_function=self._loss_function,
                keep=self._kept.begin(batch) if is_first else None,
            )
        except TrainingError as error:
            self._skipped_in_a_row += 1
            if self.config.trainer.on_bad_update is BadUpdate.stop or self._skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
                raise
            logger.warning("an update is skipped: %s", error)
            return {"train/num_skipped_updates": 1.0}
        self._skipped_in_a_row = 0
        return result | {"train/num_skipped_updates": 0.0, "train/useful_token_share": batch.useful_token_share}

    def logprobs(self, tokens: Sequence[Integers], response_lengths: list[int], temperature: float) -> dict[int, list[float]]:
        """Logprobs of the response tokens by sequence; only those of this data-parallel rank, and only where they end up.

        They are for comparing with servers: the head works in float32 whatever the precision.
        """
        samples = [TrainSample(tokens=ids, loss_mask=[1] * length) for ids, length in zip(tokens, response_lengths)]
        packed = PackedUpdate(self.config, samples, with_logprobs=False)
        shard = packed.shard(parallel_state.get_data_parallel_rank())
        micro_batches = self._micro_batches(shard, only_trained=False)
        results = forward_logprobs(self.wrapped, micro_batches, temperature=temperature, float32_head=True)
        if parallel_state.get_tensor_model_parallel_rank() != 0:
            return {}
        found: dict[int, list[float]] = {}
        for values_N, batch in zip(results, micro_batches):
            for index, part in zip(batch.sample_indices, values_N.split(batch.token_counts) if batch.token_counts else ()):
                found[index] = part.tolist()
        return found

    def trained_logprobs(self) -> dict[tuple[int, int], np.ndarray]:
        """Logprobs of the trained tokens of the last batch; see `KeptLogprobs.found`."""
        return self._kept.found()

    def export(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Hugging Face tensors by name, on every rank."""
        return bridge.export_hugging_face(self.model, self.architecture)

    def exported_shapes(self) -> list[tuple[str, torch.dtype, tuple[int, ...]]]:
        """Name, dtype and shape of every tensor of `export`, in its order, without communicating a weight."""
        return bridge.exported_shapes(self.model, self.architecture)

    def offload(self, *, weights: bool) -> None:
        """Frees the device memory of gradients and optimizer, and with `weights` also that of the weights."""
        self._offload.store(weights=weights)

    def onload(self) -> None:
        """Restores everything as it was before `offload`, except that gradients are zero."""
        self._offload.load()

    def save_hugging_face(self, folder: Path) -> None:
        """Writes a checkpoint folder that transformers and vLLM load."""
        bridge.save_hugging_face(self.model, self.architecture, source=self.source, folder=folder)

    def begin_save(self, folder: Path) -> None:
        """Copies the state and starts to write it; see `vime.trainer.checkpoint.begin`. One save at a time."""
        assert self._pending is None, "begin_save before the last one was finished"
        self._pending = checkpoint.begin(folder, self.model, self.optimizer, self._run())

    def is_saved(self) -> bool:
        """True once this rank has nothing more to write; no collective."""
        return self._pending is None or self._pending.is_written()

    def finish_save(self) -> None:
        """Waits for the files that `begin_save` started and makes the checkpoint complete. Raises `CheckpointError`."""
        pending, self._pending = self._pending, None
        assert pending is not None, "finish_save without begin_save"
        pending.finish()

    def save(self, folder: Path) -> None:
        """Writes an exact checkpoint, whole or not at all."""
        self.begin_save(folder)
        self.finish_save()

    def load(self, folder: Path) -> None:
        """Restores an exact checkpoint, of whatever layout; the reference stays the model the run began with."""
        checkpoint.load(folder, self.model, self.optimizer, self._run())

    def _run(self) -> dict[str, Any]:
        return manifest.describe_run(self.architecture, self.config.trainer)

    def _micro_batches(self, shard: Shard, *, only_trained: bool) -> MicroBatches:
        return MicroBatches(shard, only_trained=only_trained, device=parallel.device(), share=self._row_share)

    def _known_logprobs(self, batches: list[MicroBatches]) -> list[list[KnownLogprobs]]:
        """Old and reference logprobs of all updates, both before the first of them."""
        known = [[KnownLogprobs() for _ in range(len(batch))] for batch in batches]
        if self._reference is not None:
            with self._reference.in_place():
                for batch, entries in zip(batches, known):
                    for entry, values_N in zip(entries, self._forward(batch)):
                        entry.reference_N = values_N
        if self.config.algorithm.old_logprobs is OldLogprobs.trainer:
            first = 0 if self._needs_first_old_logprobs() else 1  # at the first update they are the current ones
            for batch, entries in list(zip(batches, known))[first:]:
                for entry, values_N in zip(entries, self._forward(batch)):
                    entry.old_N = values_N
        return known

    def _needs_first_old_logprobs(self) -> bool:
        algorithm = self.config.algorithm
        penalty = algorithm.kl_place is KLPlace.reward and algorithm.kl_coefficient > 0
        return penalty or self.config.trainer.num_epochs_per_batch > 1

    def _forward(self, batch: MicroBatches) -> list[torch.Tensor]:
        return forward_logprobs(self.wrapped, batch, temperature=self._temperature)
