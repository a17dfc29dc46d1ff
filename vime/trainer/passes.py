"""Passes of micro-batches through Megatron's schedule, forward alone or with gradients, and the loss of a micro-batch.

The loss is the sum over tokens and terms of weight · loss, so micro-batches, packing and sharding cannot change it.

Shape suffixes: T tokens of this rank's part of a row, N trained tokens of a micro-batch, K likeliest tokens at each place, J = 1
+ K.
"""

from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel
from megatron.core.pipeline_parallel import get_forward_backward_func

from vime.algorithm.algorithm import Algorithm, Forward, Metrics, Tokens
from vime.algorithm.kept_tokens import over_kept
from vime.algorithm.loss import masked_max
from vime.errors import HookError
from vime.trainer import metrics
from vime.trainer.logprob import likeliest_tokens, token_logprobs
from vime.trainer.micro_batch import MicroBatch, MicroBatches
from vime.trainer.model import PackedModel
from vime.trainer.pipeline import schedule_arguments
from vime.trainer.routing_replay import differences
from vime.trainer.value_head import token_values


@torch.no_grad()
def forward(
    wrapped: list[DistributedDataParallel],
    micro_batches: MicroBatches,
    *,
    temperature: float,
    is_cut: bool = False,
    float32_head: bool = False,
    values: bool = False,
    need: Forward | None = None,
) -> list[torch.Tensor]:
    """Logprobs [N] of each micro-batch, or the values, under the current weights; empty except on the last pipeline stage.

    With `is_cut` the logprobs are those of the tokens that the sampler kept. For a `need` of other tokens they are [N, J], with
    those of the K other tokens behind, and if these are the likeliest with their ids, which float32 has exactly below 2**24.
    """
    model = cast(PackedModel, wrapped[-1].module)

    def forward_step(batches: Iterator[MicroBatch], chunk: Any) -> tuple[torch.Tensor, Any]:
        batch = next(batches)

        def collect(hidden: torch.Tensor, non_loss_data: bool = True) -> torch.Tensor:
            if values:
                return _values(model, hidden[:, 0], batch)
            how = {"temperature": temperature, "is_cut": is_cut, "float32_head": float32_head}
            if need is not None and need.num_likeliest:
                top_ids_NK = likeliest_tokens(model, hidden[:, 0], batch.wanted, num=need.num_likeliest)
                found_NJ = _distribution(model, hidden, batch, top_ids_NK=top_ids_NK, **how)[0]
                return torch.cat([found_NJ, top_ids_NK.float()], 1)
            if need is not None and need.named:
                return _distribution(model, hidden, batch, top_ids_NK=batch.columns[need.named], **how)[0]
            return _distribution(model, hidden, batch, top_ids_NK=batch.columns["top_ids"] if is_cut else None, **how)[0][:, 0]

        return _hidden(chunk, batch), collect

    return _run(forward_step, wrapped, micro_batches, forward_only=True)


def forward_backward(
    wrapped: list[DistributedDataParallel],
    micro_batches: MicroBatches,
    algorithm: Algorithm,
    *,
    keep: Callable[[torch.Tensor], None] | None = None,
) -> dict[str, float]:
    """Adds the gradients of the micro-batches to Megatron's buffers; returns sums over all ranks, the same on each.

    `keep` is given the logprobs of each micro-batch, in order, on the last pipeline stage: [N] of the wanted tokens, or if the
    algorithm `answers_top` [N, J], with those of the tokens in `top_ids` behind.

    Raises `HookError` on every rank if the user's loss has raised on one; all have then ended the pass.
    """
    model = cast(PackedModel, wrapped[-1].module)
    failed: list[str] = []

    def forward_step(batches: Iterator[MicroBatch], chunk: Any) -> tuple[torch.Tensor, Any]:
        batch = next(batches)

        def loss(hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Metrics]:
            values_N = None if model.value_head is None else _values(model, hidden[:, 0], batch)
            if algorithm.is_critic:
                logprobs_NJ = batch.columns["logprob"].unsqueeze(1)
                entropy_N = torch.zeros_like(batch.columns["logprob"])
            else:
                how = {"temperature": algorithm.temperature, "is_cut": algorithm.is_cut}
                top_ids_NK = batch.columns[algorithm.top_column] if algorithm.top_column else None
                logprobs_NJ, entropy_N = _distribution(model, hidden, batch, top_ids_NK=top_ids_NK, **how)
            if keep is not None:
                keep((logprobs_NJ if algorithm.answers_top else logprobs_NJ[:, 0]).detach())
            try:
                value, sums = micro_batch_loss(algorithm, batch, logprobs_NJ, entropy_N, values_N)
            except HookError as error:  # raised after the pass, since other ranks wait for this one's part of it
                failed.append(str(error))
                value, sums = 0.0 * (logprobs_NJ.sum() + (0.0 if values_N is None else values_N.sum())), {}
            return value, torch.tensor(len(logprobs_NJ), dtype=torch.int), sums

        return _hidden(chunk, batch), loss

    parts = _run(forward_step, wrapped, micro_batches, forward_only=False)
    return _over_ranks(_over_micro_batches(parts), failed) | differences(micro_batches.routings)


def _distribution(
    model: PackedModel,
    hidden: torch.Tensor,
    batch: MicroBatch,
    *,
    top_ids_NK: torch.Tensor | None,
    is_cut: bool,
    **how: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logprobs of the wanted tokens and of those in `top_ids_NK`, [N, J], and entropy [N]; see `token_logprobs`."""
    found = token_logprobs(model, hidden[:, 0], batch.wanted, top_ids_NK=top_ids_NK, **how)
    if not is_cut:
        return found
    assert top_ids_NK is not None, "the kept tokens are recorded"
    return over_kept(found[0], batch.target_N, top_ids_NK)


def micro_batch_loss(
    algorithm: Algorithm,
    batch: MicroBatch,
    logprobs_NJ: torch.Tensor,
    entropy_N: torch.Tensor,
    values_N: torch.Tensor | None = None,
) -> tuple[torch.Tensor, Metrics]:
    """The weighted sum over tokens and terms, and metrics; see `vime.algorithm.algorithm.Metrics`."""
    logprobs_N = logprobs_NJ[:, 0]
    tokens = Tokens(
        logprobs=logprobs_N,
        top=logprobs_NJ[:, 1:] if logprobs_NJ.shape[1] > 1 else None,
        entropy=entropy_N,
        sequences=batch.sequence_N,
        staleness=batch.staleness_N,
        columns=batch.columns,
        values=values_N,
    )
    with algorithm.named():
        found = algorithm.loss(tokens)
    values = {name: (found.weights.get(name, tokens["weight"]) * term_N).sum() for name, term_N in found.terms.items()}
    loss, *others = values.values()
    for other in others:
        loss = loss + other
    sums: Metrics = {} if algorithm.is_critic else {"train/entropy": entropy_N.detach().sum()}
    sums |= {} if algorithm.is_supervised or algorithm.is_critic else _difference(tokens)
    sums |= {f"train/{name}_loss": value.detach() for name, value in values.items()}
    sums |= {name: torch.as_tensor(value).detach() for name, value in found.metrics.items()}
    return loss, sums | {"train/loss": loss.detach(), "train/num_tokens": torch.ones_like(logprobs_N).sum()}


def _values(model: PackedModel, hidden_TH: torch.Tensor, batch: MicroBatch) -> torch.Tensor:
    assert model.value_head is not None, "the values are a critic's"
    return token_values(model.value_head, hidden_TH, batch.wanted, sequence_parallel=model.config.sequence_parallel)


def _difference(tokens: Tokens) -> Metrics:
    """The distance between trainer and sampler; older tokens differ by the policy's movement as well, and do not count."""
    difference_N = (tokens.logprobs.detach() - tokens["logprob"]).abs()
    current_N = (tokens.staleness == 0).to(difference_N.dtype)
    return {
        "train/num_current_tokens": current_N.sum(),
        f"{metrics.DIFFERENCE}_mean": (difference_N * current_N).sum(),
        f"{metrics.DIFFERENCE}_max": masked_max(difference_N, current_N),
    }


def _hidden(chunk: DistributedDataParallel, batch: MicroBatch) -> torch.Tensor:
    """Hidden states of a row, [T, 1, hidden]; the position ids are those of the packed sequences."""
    model = cast(PackedModel, chunk.module)
    received, tokens = model.decoder.input_tensor, batch.tokens_T.numel()
    if received is not None:
        shards = model.config.tensor_model_parallel_size if model.config.sequence_parallel else 1
        assert received.shape[0] * shards == tokens, f"{received.shape[0]} × {shards} hidden states for {tokens} tokens"
    return chunk(batch.tokens_T.unsqueeze(0), None, None, packed_seq_params=batch.packed)


def _run(
    forward_step: Any, wrapped: list[DistributedDataParallel], micro_batches: MicroBatches, *, forward_only: bool
) -> list[Any]:
    return get_forward_backward_func()(
        forward_step_func=forward_step,
        data_iterator=[iter(micro_batches) for _ in wrapped],
        model=list(wrapped),
        num_microbatches=len(micro_batches),
        seq_length=micro_batches.longest,
        micro_batch_size=1,
        forward_only=forward_only,
        collect_non_loss_data=forward_only,
        **schedule_arguments(wrapped[0].config),
    )


def _over_micro_batches(parts: list[Metrics]) -> dict[str, float]:
    """One value per name from the micro-batches of this rank."""
    merged: dict[str, float] = {}
    for name in {name for part in parts for name in part}:
        values = torch.stack([part[name].float() for part in parts if name in part])
        merged[name] = float(values.max() if name.endswith(metrics.MAXIMUM) else values.double().sum())
    return merged


def _over_ranks(own: dict[str, float], failed: list[str]) -> dict[str, float]:
    """One value per name from all ranks, the same on all; among ranks with equal values only the first contributes.

    Raises the first error of any rank, as `HookError`.
    """
    gathered: list[tuple[dict[str, float], list[str]]] = [(own, failed)]
    if dist.get_world_size() > 1:
        gathered *= dist.get_world_size()
        counts = parallel_state.is_pipeline_last_stage() and has_first_share()
        dist.all_gather_object(gathered, (own if counts else {}, failed))
    if errors := [error for _, found in gathered for error in found]:
        raise HookError(errors[0])
    return metrics.added([sums for sums, _ in gathered]) if len(gathered) > 1 else own


def has_first_share() -> bool:
    """True on the first of the ranks whose values are equal, because they share a model's matrices or a row's tokens."""
    return parallel_state.get_tensor_model_parallel_rank() == 0 and parallel_state.get_context_parallel_rank() == 0
