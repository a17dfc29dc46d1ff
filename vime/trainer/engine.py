"""One trainer rank without Ray: model, optimizer and second weights, and the verbs that the driver composes.

    forward           columns of the trained tokens, under present or second weights; changes nothing
    forward_backward  adds gradients to those that are there; the weights stay, and may be exported or asked for logprobs
    step              one optimizer step with all gradients since the last one; afterwards no gradients are left
    export            the weights, under Hugging Face's names
    save, load        an exact checkpoint

All public methods are collectives: every rank of the world calls them in the same order. Several engines may share one model,
each with adapters of its own: `activate` comes before the verbs of another one.
"""

import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from megatron.core import parallel_state
from megatron.core.optimizer import clip_grads
from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32

from vime.algorithm.algorithm import Algorithm, Forward, Weights
from vime.algorithm.choice import algorithm_of, critic_of, second_weights
from vime.algorithm.critic import Critic
from vime.config import AlgorithmConfig, BadUpdate, CriticPlace, RoutingReplay, RunConfig, TrainedQuantization
from vime.errors import CheckpointError, ConfigError, HookError, Problem, TrainingError
from vime.model import adapter_folder
from vime.model.architecture import check_shape, checkpoint_folder, differences, read_architecture
from vime.model.size import unties
from vime.model.tokenizer import tokenizer_problems
from vime.trainer import bridge, checkpoint, lora, manifest, metrics, parallel, passes, quantization
from vime.trainer.metrics import Passed
from vime.trainer.micro_batch import MicroBatches
from vime.trainer.model import build_model, build_optimizer, set_schedule, wrap_model
from vime.trainer.offload import Offload
from vime.trainer.pending_save import PendingSave
from vime.trainer.routing_replay import Replay
from vime.trainer.second_weights import SecondWeights
from vime.trainer.shard import PackedUpdate, RowShare, Shard
from vime.trainer.value_head import freeze_attention
from vime.types import Integers, Sample

logger = logging.getLogger(__name__)

MAX_SKIPPED_IN_A_ROW = 10
"""Number of skipped updates in a row after which the run ends, because it no longer learns."""
OPTIONS = ("lr", "beta1", "beta2", "eps", "weight_decay", "clip_grad")
"""Parameters of an optimizer step; those that are not given are the configuration's."""
EPSILON = 1e-8
"""Adam's epsilon, where it is not given."""


def critic_folder(folder: Path) -> Path:
    """The folder of the critic's checkpoint beside that of the policy."""
    return folder.with_name(f"{folder.name}_critic")


def _norm(_: int, __: torch.Tensor, tensors: list[list[torch.Tensor]], *___: Any) -> tuple[torch.Tensor, None]:
    """The norm of all tensors together, [1]. Megatron's own reads that of each on the host."""
    return torch.nn.utils.get_total_norm(tensors[0]).view(1), None


clip_grads.l2_norm_impl = _norm


class Engine:
    """The trained model on this rank, loaded from `config.model.checkpoint`; process groups exist already."""

    def __init__(self, config: RunConfig, *, beside: "Engine | None" = None, critic: Critic | None = None) -> None:
        """With an engine `beside`, its model is shared, and adapters are all that is new; with a `critic` it is the critic's."""
        self.config = config
        self.algorithm: Algorithm = critic or algorithm_of(config)
        if beside is None:
            self._load_model(config)
        else:
            assert config.trainer.lora.rank and beside.config.trainer.lora.rank, "engines share a model that is frozen"
            self.source, self.architecture, self.model = beside.source, beside.architecture, beside.model
        self._adapters = self._attach_adapters() if config.trainer.lora.rank else []
        self._exported = (
            replace(self.architecture, tie_word_embeddings=False)
            if unties(config.model, config.trainer.lora)
            else self.architecture
        )
        """The architecture of what is exported."""
        self.wrapped = wrap_model(self.model, config.trainer)
        self.optimizer = build_optimizer(self.wrapped, config.trainer)
        needs = [] if self.algorithm.is_critic else second_weights(config)
        self.second = {need: self._second_weights(need) for need in needs}
        """Weights beside the trained ones, by the need that they answer."""
        self._offload = Offload(self.wrapped, self.optimizer)
        # a critic with a model of its own has experts of its own
        kind = RoutingReplay.none if self.algorithm.is_critic else config.trainer.routing_replay
        self._replay = Replay(kind, self.model.parts)
        self._pending: PendingSave | None = None
        self._row_share = RowShare.of(config.trainer, context_rank=parallel_state.get_context_parallel_rank())
        self._passes: list[Passed] = []
        """The passes whose gradients are in the buffers."""
        self._skipped_in_a_row = 0
        self._forward_seconds = 0.0
        """Seconds spent on passes for columns since the last gradient."""
        own = None if self.algorithm.is_critic else critic_of(config)
        self.critic = type(self)(config, critic=own) if own is not None else None
        """The engine of the critic's weights, where these are a model of their own; it is saved and offloaded with this one."""

    def _load_model(self, config: RunConfig) -> None:
        self.source = checkpoint_folder(config.model.checkpoint)
        self.architecture = read_architecture(self.source, rope_parameters=config.model.rope_parameters)
        check_shape(self.architecture, config.model)
        if problems := tokenizer_problems(self.source, key="model.checkpoint", value=config.model.checkpoint):
            raise ConfigError(problems)
        critic = config.algorithm.critic
        has_values = self.algorithm.is_critic or critic.place is CriticPlace.trunk
        self.model = build_model(self.architecture, config.trainer, critic if has_values else None)
        if self.algorithm.is_critic and critic.place is CriticPlace.frozen_attention:
            freeze_attention(self.model)
        if config.trainer.quantization is not TrainedQuantization.none and not self.algorithm.is_critic:
            quantization.attach(self.model, config.trainer.quantization)  # a critic's model, which nothing serves, stays as it is
        bridge.load_hugging_face(self.model, self.architecture, self.source)

    def _attach_adapters(self) -> lora.Places:
        """Freezes the weights and adds adapters, new ones or those of the folder that the run begins with."""
        config = self.config.trainer.lora
        if config.start and (problems := adapter_folder.start_problems(config, self.config.model)):
            raise ConfigError(problems)
        attached = lora.attach(self.model, self.architecture, config, seed=self.config.seed)
        if config.start:
            bridge.load_hugging_face(self.model, self.architecture, Path(config.start), adapters=True)
        return attached

    def _second_weights(self, need: Forward) -> SecondWeights:
        """A copy of the weights as they are now, or those of another checkpoint. Raises `ConfigError` if these do not fit."""
        second = SecondWeights(self.model.trained, decay=need.decay if need.weights is Weights.average else None)
        if need.weights is Weights.checkpoint:
            folder = checkpoint_folder(need.checkpoint)
            found = read_architecture(folder, rope_parameters=self.config.model.rope_parameters)
            if differing := differences(self.architecture, found):
                remedy = f"its architecture is not that of model.checkpoint ({differing})"
                raise ConfigError([Problem(key="algorithm.distillation.teachers", value=need.checkpoint, remedy=remedy)])
            with second.in_place():
                bridge.load_hugging_face(self.model, self.architecture, folder)
        return second

    def activate(self) -> None:
        """Puts this engine's adapters into the model that it shares with others; no collective."""
        lora.place(self._adapters)
        set_schedule(self.wrapped)

    def of_config(self, config: AlgorithmConfig) -> Algorithm:
        """The algorithm of a configuration, which is usually the run's."""
        if config == self.config.algorithm:
            return self.algorithm
        run = replace(self.config, algorithm=config)
        return Critic(run) if self.algorithm.is_critic else algorithm_of(run)

    @property
    def answers(self) -> bool:
        """True on the first of the ranks that hold the columns of the same data."""
        return parallel_state.is_pipeline_last_stage() and passes.has_first_share()

    def forward(self, shard: Shard, needs: Sequence[Forward]) -> list[dict[str, np.ndarray]] | None:
        """Columns of the trained tokens, float32, for each block of the shard; None on a rank that does not hold them.

        Those who hold them are the ranks of the last pipeline stage.
        """
        started, batches = time.monotonic(), self._micro_batches(shard, only_trained=True)
        found: list[dict[str, np.ndarray]] | None = None
        for need in needs:
            of_critic = need.weights is Weights.critic
            second = self.second.get(need.weights_only)
            is_known = second is not None or of_critic or need.weights is Weights.present
            assert is_known, f"{need} is no need of the run's algorithm"
            wrapped = self.critic.wrapped if of_critic and self.critic is not None else self.wrapped
            routing = None  # a reference's routers choose themselves, as a critic's do
            if need.weights is Weights.present:
                routing = self._replay.of_old_logprobs(shard, len(batches))
            elif wrapped is self.wrapped and second is None:
                routing = self._replay.of_update(shard, len(batches))
            with second.in_place() if second is not None else nullcontext():
                how = {"temperature": self.algorithm.temperature, "is_cut": self.algorithm.is_cut, "need": need}
                values = passes.forward(wrapped, batches.routed(routing), values=of_critic, **how)
            if parallel_state.is_pipeline_last_stage():
                columns = [need.columns(each) for each in batches.by_block(values)]
                found = columns if found is None else [one | more for one, more in zip(found, columns, strict=True)]
        self._forward_seconds += time.monotonic() - started
        return found

    def forward_backward(self, shard: Shard, algorithm: Algorithm, *, keep: bool = False) -> Passed:
        """Adds the gradients of an update, or of a part of one; the weights stay as they are.

        Gradients of several calls add up as those of one call with all sequences. With `keep` the logprobs are returned too.
        Raises `TrainingError` if the loss is not finite, or with `trainer.on_bad_update=skip` counts it; `HookError`, on every
        rank, if the user's loss raises. Gradients are then gone.
        """
        earlier = self._set_aside() if self._passes else []
        for chunk in self.wrapped:
            chunk.zero_grad_buffer()
        if not self._passes:
            self.optimizer.zero_grad()
        started, batches = time.monotonic(), self._micro_batches(shard, only_trained=True)
        batches = batches.routed(self._replay.of_update(shard, len(batches)))
        logprobs: list[torch.Tensor] = []
        try:
            sums = passes.forward_backward(self.wrapped, batches, algorithm, keep=logprobs.append if keep else None)
        except HookError:
            self._drop_gradients()
            raise
        if not math.isfinite(sums["train/loss"]):
            return Passed(sums=self._bad("loss", sums["train/loss"], step=shard.version, sums=sums))
        for buffer, kept in zip(self._gradients(), earlier):
            buffer.add_(kept)
        self._passes.append(Passed(sums=sums))
        torch.cuda.synchronize()  # another process may export the weights as soon as this returns
        sums = sums | {metrics.SECONDS: time.monotonic() - started + self._forward_seconds}
        self._forward_seconds = 0.0
        return Passed(sums=sums, columns=[{"trained": array} for array in batches.by_block(logprobs)] if logprobs else None)

    def step(self, *, optimizer: Mapping[str, float], step: int = 0) -> dict[str, float]:
        """One step of AdamW with the gradients that are there; `optimizer` has `lr` and any of the other `OPTIONS`.

        Returns the gradient's norm and the learning rate. Raises `TrainingError`, with the weights as they were, if the norm is
        not finite, or with `trainer.on_bad_update=skip` counts it.
        """
        assert self._passes, "forward_backward comes before step, and a bad one has left nothing"
        started = time.monotonic()
        assert not (wrong := set(optimizer) - set(OPTIONS)), f"no option of a step: {sorted(wrong)}"
        sums = metrics.added([passed.sums for passed in self._passes])
        self.optimizer.prepare_grads()
        grad_norm = float(self.optimizer.get_grad_norm())
        if not math.isfinite(grad_norm):
            return self._bad("gradient norm", grad_norm, step=step, sums=sums)
        self._passes, self._skipped_in_a_row = [], 0
        self._clip_and_step(grad_norm, optimizer)
        for second in self.second.values():
            second.follow()
        torch.cuda.synchronize()  # another process or stream may read the weights as soon as this returns
        return {"train/grad_norm": grad_norm, "train/lr": optimizer["lr"], metrics.SECONDS: time.monotonic() - started}

    @torch.no_grad()
    def _clip_and_step(self, grad_norm: float, options: Mapping[str, float]) -> None:
        """The second half of Megatron's `step`, for gradients that are prepared and whose norm is known already."""
        trainer = self.config.trainer
        betas = options.get("beta1", trainer.adam_beta1), options.get("beta2", trainer.adam_beta2)
        decay = options.get("weight_decay", trainer.weight_decay)
        for group in self.optimizer.param_groups:
            group.update(lr=options["lr"], betas=betas, eps=options.get("eps", EPSILON), weight_decay=decay * group["wd_mult"])
        most = options.get("clip_grad", trainer.clip_grad)
        for link in getattr(self.optimizer, "chained_optimizers", [self.optimizer]):
            parameters = [] if getattr(link, "is_stub_optimizer", False) else link.get_parameters()
            if parameters and most > 0.0:
                clip_grad_by_total_norm_fp32(parameters, max_norm=most, total_norm=grad_norm)
        self.optimizer.step_with_ready_grads()

    def _bad(self, name: str, value: float, *, step: int, sums: dict[str, float]) -> dict[str, float]:
        """Drops the gradients, then returns the metrics of a skipped update or raises `TrainingError`."""
        self._drop_gradients()
        self._skipped_in_a_row += 1
        seen = ", ".join(f"{key.removeprefix('train/')}={total:.4g}" for key, total in sorted(sums.items()))
        text = (
            f"step {step}: the {name} is {value}; the weights were not changed ({seen}). Look at the logprobs and rewards of "
            "this batch, lower trainer.lr, or resume from the last checkpoint"
        )
        if self.config.trainer.on_bad_update is BadUpdate.stop or self._skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
            raise TrainingError(text)
        logger.warning("an update is skipped: %s", text)
        return {metrics.SKIPPED: 1.0, metrics.SECONDS: 0.0}

    def _drop_gradients(self) -> None:
        for chunk in self.wrapped:
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()
        self._passes = []

    def _set_aside(self) -> list[torch.Tensor]:
        """Copies of the gradients, which have been summed over the ranks: the next sum must not count them again."""
        return [buffer.clone() for buffer in self._gradients()]

    def _gradients(self) -> list[torch.Tensor]:
        chunks: Any = self.wrapped
        return [buffer.grad_data for chunk in chunks for buffer in (*chunk.buffers, *chunk.expert_parallel_buffers)]

    def logprobs(self, tokens: Sequence[Integers], response_lengths: list[int], temperature: float) -> dict[int, list[float]]:
        """Logprobs of the response tokens by sequence; only those of this data-parallel rank, and only where they end up.

        They are for comparing with servers: the head works in float32 at any precision.
        """
        samples = [Sample(tokens=ids, loss_mask=[1] * length) for ids, length in zip(tokens, response_lengths)]
        packed = PackedUpdate(self.config, samples, with_logprobs=False)
        shard = packed.shard(parallel_state.get_data_parallel_rank())
        micro_batches = self._micro_batches(shard, only_trained=False)
        results = passes.forward(self.wrapped, micro_batches, temperature=temperature, float32_head=True)
        if parallel_state.get_tensor_model_parallel_rank() != 0:
            return {}
        found: dict[int, list[float]] = {}
        for values_N, batch in zip(results, micro_batches):
            for index, part in zip(batch.sample_indices, values_N.split(batch.token_counts) if batch.token_counts else ()):
                found[index] = part.tolist()
        return found

    def export(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Hugging Face tensors by name, on every rank."""
        return bridge.export_hugging_face(self.model, self._exported)

    def exported_shapes(self) -> list[tuple[str, torch.dtype, tuple[int, ...]]]:
        """Name, dtype and shape of every tensor of `export`, in its order, without communicating a weight."""
        return bridge.exported_shapes(self.model, self._exported)

    def offload(self, *, weights: bool) -> None:
        """Frees the device memory of gradients and optimizer, and with `weights` also that of the weights."""
        self._offload.store(weights=weights)
        if self.critic is not None:  # whose weights no server wants
            self.critic.offload(weights=True)

    def onload(self) -> None:
        """Restores everything as it was before `offload`, except that gradients are zero."""
        self._offload.load()
        if self.critic is not None:
            self.critic.onload()

    def save_hugging_face(self, folder: Path) -> None:
        """Writes a checkpoint folder that transformers and vLLM load."""
        bridge.save_hugging_face(self.model, self._exported, source=self.source, folder=folder)

    def export_adapter(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The adapters' tensors by PEFT's names, on every rank."""
        return bridge.export_hugging_face(self.model, self.architecture, adapters=True)

    def describe_adapter(self) -> dict[str, Any]:
        """PEFT's configuration of the adapters."""
        return adapter_folder.describe(self.config.trainer.lora, base=self.config.model.checkpoint)

    def save_adapter(self, folder: Path) -> None:
        """Writes the adapters as a folder that PEFT and vLLM load."""
        bridge.save_adapter(self.model, self.architecture, description=self.describe_adapter(), folder=folder)

    def begin_save(self, folder: Path) -> None:
        """Copies the state and starts to write it; see `vime.trainer.checkpoint.begin`. One save at a time."""
        assert self._pending is None, "begin_save before the last one was finished"
        self._pending = checkpoint.begin(folder, self.model, self.optimizer, self._run(), averages=self._averages())
        if self.critic is None:
            return
        try:
            self.critic.begin_save(critic_folder(folder))
        except CheckpointError:  # on every rank; the policy's alone is no checkpoint
            pending, self._pending = self._pending, None
            pending.finish()
            raise

    def is_saved(self) -> bool:
        """True once this rank has nothing more to write; no collective."""
        is_written = self._pending is None or self._pending.is_written()
        return is_written and (self.critic is None or self.critic.is_saved())

    def finish_save(self) -> None:
        """Waits for the files that `begin_save` started and makes the checkpoint complete. Raises `CheckpointError`."""
        pending, self._pending = self._pending, None
        assert pending is not None, "finish_save without begin_save"
        try:
            pending.finish()
        finally:  # both have begun
            if self.critic is not None:
                self.critic.finish_save()

    def save(self, folder: Path) -> None:
        """Writes an exact checkpoint, whole or not at all."""
        self.begin_save(folder)
        self.finish_save()

    def load(self, folder: Path, *, optimizer: bool = True) -> None:
        """Restores an exact checkpoint of any layout; the reference stays the model that the run began with.

        Without the `optimizer` only the weights are restored, and its moments stay as they are.
        """
        if self.critic is not None:
            self.critic.load(critic_folder(folder))
        about = {"averages": self._averages(), "with_moments": optimizer}
        checkpoint.load(folder, self.model, self.optimizer, self._run(), **about)

    def _run(self) -> dict[str, Any]:
        place = self.config.algorithm.critic.place
        critic = place if self.algorithm.is_critic or place is CriticPlace.trunk else None
        return manifest.describe_run(self.architecture, self.config.trainer, base=self.source, critic=critic)

    def _averages(self) -> dict[str, list[torch.Tensor]]:
        """Running averages of the weights by a name for checkpoints, parameter by parameter."""
        pairs = ((need, second.kept) for need, second in self.second.items() if need.weights is Weights.average)
        return {f"average_{need.decay:g}": kept for need, kept in pairs}

    def _micro_batches(self, shard: Shard, *, only_trained: bool) -> MicroBatches:
        return MicroBatches(shard, only_trained=only_trained, device=parallel.device(), share=self._row_share)
