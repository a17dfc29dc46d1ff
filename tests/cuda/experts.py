"""Numbers of tokens of each expert; on a device they follow from the router's values, here all are equal.

Megatron's dispatcher learns these numbers from the device once a layer. What it hands over is checked, and replaced.
"""

from typing import Any

import numpy as np
import torch

from tests.cuda import tensors
from tests.cuda.counts import refused


def install(*, chosen: int, num_experts: int) -> None:
    """Gives Megatron's dispatcher balanced numbers, `chosen` of `num_experts` for each token."""
    from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher

    tensors.SHARE_OF_A_MASK[:] = [chosen, num_experts]
    original = MoEAlltoAllTokenDispatcher._maybe_dtoh_and_synchronize

    def synchronize(dispatcher: Any, point: str, tokens_per_expert: Any = None) -> Any:
        if point != dispatcher.cuda_dtoh_point:
            return original(dispatcher, point, tokens_per_expert)
        _check_sizes(dispatcher)
        original(dispatcher, point, tokens_per_expert)
        return _balance(dispatcher)

    MoEAlltoAllTokenDispatcher._maybe_dtoh_and_synchronize = synchronize  # type: ignore[method-assign]


def _check_sizes(dispatcher: Any) -> None:
    for name in ("input_splits", "output_splits", "output_splits_tp", "num_global_tokens_per_local_expert"):
        sizes = getattr(dispatcher, name, None)
        if torch.is_tensor(sizes) and (sizes.device.type != "cuda" or sizes.dtype is not torch.int64):
            refused(f"{name} is {sizes.dtype} on {sizes.device}")


def _balance(dispatcher: Any) -> np.ndarray:
    """Fills in the numbers that the dispatcher wants on the host; returns those of this rank's experts."""
    own, total = dispatcher.num_local_experts, dispatcher.num_experts
    each, rest = divmod(dispatcher.routing_map.size(0) * dispatcher.config.moe_router_topk, total)
    by_expert = [each] * total
    for index in range(rest):  # in turn to each rank
        by_expert[(index % own + index // own * own) % total] += 1
    first = dispatcher.local_expert_indices[0]
    local = by_expert[first : first + own]
    ranks = dispatcher.ep_size * dispatcher.tp_size
    with tensors.outside():
        if ranks > 1:
            by_rank = [sum(by_expert[rank * own : (rank + 1) * own]) for rank in range(dispatcher.ep_size)]
            dispatcher.input_splits = np.array(by_rank)
            dispatcher.output_splits = np.array([sum(local)] * dispatcher.ep_size)
            dispatcher.output_splits_tp = np.array([sum(local) * dispatcher.ep_size] * dispatcher.tp_size)
        if own > 1:
            dispatcher.num_global_tokens_per_local_expert = np.array([local] * ranks)
        return np.array([number * ranks for number in local])
