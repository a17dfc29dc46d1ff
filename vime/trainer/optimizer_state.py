"""The state of Megatron's optimizers for each parameter: float32 master weights, moments and the step, for all their classes.

Without the distributed optimizer a rank owns the state of all its parameters; with it, a contiguous part of each, flattened,
which may be empty. `whole` brings the parts of the data-parallel ranks together, `fill` puts them back.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.optimizer.optimizer import MegatronOptimizer

from vime.trainer.parallel import device

MOMENTS = ("exp_avg", "exp_avg_sq")
MASTER = "master"
KINDS = (MASTER, *MOMENTS)


@dataclass(kw_only=True, slots=True)
class ParameterPart:
    """The part of one parameter's state that this rank's optimizer holds.

    Example: the second of two data-parallel ranks owns the last 40 of 100 values: `ParameterPart(parameter=…, start=60, end=100,
    tensors={"master": …, "exp_avg": …, "exp_avg_sq": …}, sharers=<group of both>)`; all tensors have `end - start` values.
    """

    parameter: torch.nn.Parameter
    start: int
    end: int
    tensors: dict[str, torch.Tensor]
    sharers: Any
    """Process group of the ranks that own the other parts; None if this one owns all."""

    def whole(self, kind: str, *, receiver: int) -> torch.Tensor | None:
        """The float32 tensor of the parameter's shape on the `receiver`-th of the sharers; a collective among them."""
        if self.sharers is None:
            return self.tensors[kind].detach().float()
        flat = torch.zeros(self.parameter.numel(), dtype=torch.float32, device=device())
        if self.end > self.start:
            flat[self.start : self.end] = self.tensors[kind].detach().flatten()
        # as whole numbers, of which all but one are 0, the sum is exact to the bit
        dist.reduce(flat.view(torch.int32), dist.get_global_rank(self.sharers, receiver), group=self.sharers)
        return flat.view(self.parameter.shape) if dist.get_rank(self.sharers) == receiver else None

    def fill(self, kind: str, whole: torch.Tensor) -> None:
        """Takes this rank's part of the float32 tensor of the whole parameter."""
        own = self.tensors[kind]
        own.copy_(whole.flatten()[self.start : self.end].view_as(own))


def parts(optimizer: MegatronOptimizer) -> list[ParameterPart]:
    """One entry per parameter of the optimizer, in the same order on all ranks that share them; fresh moments are zero."""
    found: list[ParameterPart] = []
    for link in _links(optimizer):
        _initialize(link)
        found += _distributed_parts(link) if isinstance(link, DistributedOptimizer) else _local_parts(link)
    return found


def num_steps(optimizer: MegatronOptimizer) -> int:
    """Updates that Adam has made, for its bias correction."""
    counted = [torch.as_tensor(count) for link in _links(optimizer) for count in _counts(link.optimizer)]
    counts = set(torch.stack(counted).tolist())  # one wait for the device instead of one per parameter
    assert len(counts) == 1, f"parameters differ in their number of updates: {sorted(counts)}"
    return int(counts.pop())


def set_num_steps(optimizer: MegatronOptimizer, steps: int) -> None:
    """The inverse of `num_steps`, after `parts`."""
    for link in _links(optimizer):
        inner: Any = link.optimizer
        if _counts_per_parameter(inner):
            for state in inner.state.values():
                state["step"].fill_(steps)
        else:
            for group in inner.param_groups:
                group["step"] = steps


def _links(optimizer: MegatronOptimizer) -> list[Any]:
    """The optimizers of Megatron's chain that have parameters: one, or one for dense weights and one for experts."""
    return [link for link in getattr(optimizer, "chained_optimizers", [optimizer]) if link.optimizer is not None]


def _counts_per_parameter(inner: Any) -> bool:
    """PyTorch counts updates per parameter, Transformer Engine and Apex per group."""
    return isinstance(inner, torch.optim.Adam | torch.optim.AdamW)


def _counts(inner: Any) -> Iterator[Any]:
    if _counts_per_parameter(inner):
        yield from (state["step"] for state in inner.state.values() if "step" in state)
    else:
        yield from (group.get("step", 0) for group in inner.param_groups if group["params"])


def _initialize(link: Any) -> None:
    """Gives a fresh optimizer the state that its first step would: zero moments, no updates."""
    assert not link.config.use_precision_aware_optimizer, "moments of a precision-aware optimizer are not plain float32"
    link.init_state_fn(link.optimizer, link.config)
    if _counts_per_parameter(link.optimizer):
        for parameter, state in link.optimizer.state.items():  # as PyTorch's fused Adam counts, beside the parameter
            state.setdefault("step", torch.zeros((), dtype=torch.float32, device=parameter.device))


def _local_parts(link: Any) -> list[ParameterPart]:
    """In float32 the parameters are their own masters; otherwise Megatron keeps both in lists of the same order."""
    groups = list(zip(getattr(link, "float16_groups", []), getattr(link, "fp32_from_float16_groups", [])))
    pairs = [pair for models, masters in groups for pair in zip(models, masters, strict=True)]
    pairs += [(own, own) for own in link.get_parameters() if id(own) not in {id(master) for _, master in pairs}]
    return [
        ParameterPart(parameter=model, start=0, end=model.numel(), tensors=_tensors(link.optimizer, master), sharers=None)
        for model, master in pairs
    ]


def _distributed_parts(link: DistributedOptimizer) -> list[ParameterPart]:
    found = []
    inner: Any = link.optimizer
    for parameter in (parameter for buffer in link.buffers for parameter in buffer.param_index_map):
        start, end, tensors = 0, 0, {}
        if parameter in link.model_param_group_index_map:
            owned = link._get_model_param_range_map(parameter)["param"]
            group, position = link.model_param_group_index_map[parameter]
            start, end = owned.start, owned.end
            tensors = _tensors(inner, inner.param_groups[group]["params"][position])
        found.append(ParameterPart(parameter=parameter, start=start, end=end, tensors=tensors, sharers=link.data_parallel_group))
    return found


def _tensors(inner: Any, master: torch.Tensor) -> dict[str, torch.Tensor]:
    return {MASTER: master.detach(), **{moment: inner.state[master][moment] for moment in MOMENTS}}
