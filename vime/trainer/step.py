"""One optimizer update: micro-batches through Megatron's schedule, the checks, and Adam.

The loss of an update is the sum over samples of `weight * mask * loss`, so micro-batches, packing and sharding
cannot change it. A number that is not finite ends the run before it reaches the weights.
"""

import math
from collections.abc import Callable, Generator, Iterator
from typing import Any, cast

import torch
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer import clip_grads
from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32
from megatron.core.optimizer.optimizer import MegatronOptimizer
from megatron.core.pipeline_parallel import get_forward_backward_func

from vime.algorithm.loss import policy_loss
from vime.config import AlgorithmConfig
from vime.errors import TrainingError
from vime.trainer import metrics
from vime.trainer.logprob import token_logprobs
from vime.trainer.micro_batch import MicroBatch, MicroBatches
from vime.trainer.model import PackedModel
from vime.trainer.objective import KnownLogprobs, LossFunction, micro_batch_loss
from vime.trainer.pipeline import schedule_arguments


def _norm(_: int, __: torch.Tensor, tensors: list[list[torch.Tensor]], *___: Any) -> tuple[torch.Tensor, None]:
    """The norm of all tensors together, [1]. Megatron's own reads that of each on the host."""
    return torch.nn.utils.get_total_norm(tensors[0]).view(1), None


clip_grads.l2_norm_impl = _norm


def update(
    wrapped: list[DistributedDataParallel],
    optimizer: MegatronOptimizer,
    config: AlgorithmConfig,
    micro_batches: MicroBatches,
    *,
    known: list[KnownLogprobs],
    temperature: float,
    lr: float,
    step: int,
    loss_function: LossFunction = policy_loss,
    keep: Callable[[torch.Tensor], None] | None = None,
) -> Generator[None, None, dict[str, float]]:
    """Forward, backward and one optimizer step; a collective over all ranks, which returns the same metrics on each.

    Yields once, before the optimizer step: until then the weights are as they were. `keep` is given the logprobs [N] of each
    micro-batch, in order, on the last pipeline stage. Raises `TrainingError`, with the weights as they were, if loss or gradient
    norm is not finite.
    """
    model = cast(PackedModel, wrapped[-1].module)

    def forward_step(pairs: Iterator[tuple[MicroBatch, KnownLogprobs]], chunk: Any) -> tuple[torch.Tensor, Any]:
        batch, logprobs = next(pairs)

        def loss(hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
            current_N, entropy_N = token_logprobs(model, hidden[:, 0], batch.wanted, temperature=temperature)
            if keep is not None:
                keep(current_N.detach())
            value, sums = micro_batch_loss(config, batch, current_N, entropy_N, known=logprobs, loss_function=loss_function)
            return value, torch.tensor(current_N.numel(), dtype=torch.int), sums

        return _forward(chunk, batch), loss

    for chunk in wrapped:
        chunk.zero_grad_buffer()
    optimizer.zero_grad()
    parts = _run(forward_step, wrapped, micro_batches, lambda: zip(micro_batches, known), forward_only=False)
    totals = metrics.reduce(metrics.merge(parts))
    _check("loss", totals["train/loss"], step, totals, optimizer)
    optimizer.prepare_grads()
    grad_norm = float(optimizer.get_grad_norm())
    _check("gradient norm", grad_norm, step, totals, optimizer)
    yield
    for group in optimizer.param_groups:
        group["lr"] = lr
    _step(optimizer, grad_norm)
    return metrics.per_token(totals) | {"train/grad_norm": grad_norm, "train/lr": lr}


@torch.no_grad()
def _step(optimizer: MegatronOptimizer, grad_norm: float) -> None:
    """Megatron's `step` after its gradients are prepared and their norm is known; it would compute both again."""
    for link in getattr(optimizer, "chained_optimizers", [optimizer]):
        parameters = [] if getattr(link, "is_stub_optimizer", False) else link.get_parameters()
        if parameters and link.config.clip_grad > 0.0:
            clip_grad_by_total_norm_fp32(parameters, max_norm=link.config.clip_grad, total_norm=grad_norm)
    optimizer.step_with_ready_grads()


@torch.no_grad()
def forward_logprobs(
    wrapped: list[DistributedDataParallel], micro_batches: MicroBatches, *, temperature: float, float32_head: bool = False
) -> list[torch.Tensor]:
    """Logprobs [N] of each micro-batch under the current weights; empty except on the last pipeline stage."""
    model = cast(PackedModel, wrapped[-1].module)

    def forward_step(batches: Iterator[MicroBatch], chunk: Any) -> tuple[torch.Tensor, Any]:
        batch = next(batches)

        def collect(hidden: torch.Tensor, non_loss_data: bool = True) -> torch.Tensor:
            return token_logprobs(model, hidden[:, 0], batch.wanted, temperature=temperature, float32_head=float32_head)[0]

        return _forward(chunk, batch), collect

    return _run(forward_step, wrapped, micro_batches, lambda: iter(micro_batches), forward_only=True)


def _forward(chunk: DistributedDataParallel, batch: MicroBatch) -> torch.Tensor:
    """Hidden states of a row, [T, 1, hidden]; the position ids are those of the packed sequences."""
    model = cast(PackedModel, chunk.module)
    received, tokens = model.decoder.input_tensor, batch.tokens_T.numel()
    if received is not None:
        shards = model.config.tensor_model_parallel_size if model.config.sequence_parallel else 1
        assert received.shape[0] * shards == tokens, f"{received.shape[0]} × {shards} hidden states for {tokens} tokens"
    return chunk(batch.tokens_T.unsqueeze(0), None, None, packed_seq_params=batch.packed)


def _run(
    forward_step: Any,
    wrapped: list[DistributedDataParallel],
    micro_batches: MicroBatches,
    data: Callable[[], Iterator[Any]],
    *,
    forward_only: bool,
) -> list[Any]:
    return get_forward_backward_func()(
        forward_step_func=forward_step,
        data_iterator=[data() for _ in wrapped],
        model=list(wrapped),
        num_microbatches=len(micro_batches),
        seq_length=micro_batches.longest,
        micro_batch_size=1,
        forward_only=forward_only,
        collect_non_loss_data=forward_only,
        **schedule_arguments(wrapped[0].config),
    )


def _check(name: str, value: float, step: int, totals: dict[str, float], optimizer: MegatronOptimizer) -> None:
    if math.isfinite(value):
        return
    optimizer.zero_grad()
    seen = ", ".join(f"{key.removeprefix('train/')}={total:.4g}" for key, total in sorted(totals.items()))
    raise TrainingError(
        f"step {step}: the {name} is {value}; the weights were not changed ({seen}). Look at the logprobs and rewards of "
        "this batch, lower trainer.lr, or resume from the last checkpoint"
    )
