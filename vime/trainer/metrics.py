"""Metrics of an update over micro-batches and ranks: sums of tokens, sums that are already weighted, and maxima."""

import torch
import torch.distributed as dist
from megatron.core import parallel_state

WEIGHTED = ("train/loss", "train/policy_loss")
"""Metrics that are sums with weights, and thereby means."""
TOTALS = ("train/num_tokens", "train/num_samples", "train/num_current_tokens", "train/num_skipped_updates")
"""Added over the updates of a batch; other metrics are averaged, maxima are maxima."""
DIFFERENCE = "train/logprob_difference"


def merge(parts: list[dict[str, torch.Tensor]]) -> dict[str, float]:
    """One value per name from the micro-batches of this rank."""
    merged: dict[str, float] = {}
    for name in {name for part in parts for name in part}:
        values = torch.stack([part[name].float() for part in parts if name in part])
        merged[name] = float(values.max() if name.endswith("_max") else values.double().sum())
    return merged


def reduce(own: dict[str, float]) -> dict[str, float]:
    """One value per name from all ranks, the same on all; of ranks with equal values only the first contributes."""
    counts = (
        parallel_state.is_pipeline_last_stage()
        and parallel_state.get_tensor_model_parallel_rank() == 0
        and parallel_state.get_context_parallel_rank() == 0
    )
    if dist.get_world_size() == 1:
        return own
    gathered: list[dict[str, float]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(gathered, own if counts else {})
    total: dict[str, float] = {}
    for part in gathered:
        for name, value in part.items():
            if name not in total:
                total[name] = value
            else:
                total[name] = max(total[name], value) if name.endswith("_max") else total[name] + value
    return total


def per_token(sums: dict[str, float]) -> dict[str, float]:
    """Sums over tokens become means; weighted sums, totals and maxima stay.

    The difference to the engine's logprobs is a mean over the tokens of the current weights, absent if there are none.
    """
    num_tokens = max(sums.get("train/num_tokens", 0.0), 1.0)
    kept = (*WEIGHTED, *TOTALS)
    means = {name: value if name in kept or name.endswith("_max") else value / num_tokens for name, value in sums.items()}
    if num_current := sums.get("train/num_current_tokens"):
        return means | {f"{DIFFERENCE}_mean": sums[f"{DIFFERENCE}_mean"] / num_current}
    return {name: value for name, value in means.items() if not name.startswith(DIFFERENCE)}


def over_updates(updates: list[dict[str, float]]) -> dict[str, float]:
    """One value per name from the updates of a batch.

    The difference to the engine's logprobs is the first update's, because later ones have moved away on purpose.
    """
    result: dict[str, float] = {}
    for name in dict.fromkeys(name for update in updates for name in update):
        values = [update[name] for update in updates if name in update]
        if name.startswith(DIFFERENCE):
            result[name] = values[0]
        elif name in TOTALS:
            result[name] = sum(values)
        else:
            result[name] = max(values) if name.endswith("_max") else sum(values) / len(values)
    return result
