"""Routing replay: update passes send tokens to the experts that an earlier pass has chosen.

A router is a top-k over near ties: a server in bfloat16 sends some tokens to other experts than the trainer, and an update moves
tokens too. Their logprobs then differ by far more than rounding. R2 (proposed with GSPO, arXiv 2507.18071; the name is of arXiv
2512.01374) replays the experts of the trainer's pass for the old logprobs, R3 (arXiv 2510.11370) those with which the servers
sampled. The weights of these experts are still the present router's softmax over their scores, so that the router learns.

Megatron's routers ask their `router_replay` for the experts. Megatron's own class keeps its experts in lists that are read in the
order of backward passes, which an interleaved pipeline does not keep; here they travel with the description of the micro-batch's
row (`PackedSequences`), which every layer gets again when it is recomputed. Where the replayed experts are those that the router
would have chosen, all numbers are the same bit for bit.

Shape suffixes: T tokens of this rank's part of the row, S its share of them under sequence parallelism (else T), L layers, K
experts of a token, E experts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.transformer.moe.router_replay import RouterReplay

from vime.config import RoutingReplay
from vime.trainer import parallel
from vime.trainer.metrics import NUM_REPLAYED, ROUTING_DIFFERENCE
from vime.trainer.shard import Shard
from vime.types.routed_experts import id_type, unknown


@dataclass(kw_only=True, slots=True)
class Routing:
    """The experts of a micro-batch's row on this rank: those that an earlier pass chose, and how many of them are other ones.

    Chunks of an interleaved pipeline share it.
    """

    chosen: dict[int, torch.Tensor] = field(default_factory=dict)
    """The experts of this rank's layers, [S, K], by the layer's place in the model."""
    records: bool = False
    """True in a pass that fills `chosen`; otherwise they are replayed, if the row has none of its own."""
    differs_S: torch.Tensor | None = None
    """True for tokens that a layer of this rank would have sent to other experts."""
    known_S: torch.Tensor | None = None
    """True for tokens whose experts are known."""

    def given(self, experts_TLK: torch.Tensor | None, layer: int, count: int) -> torch.Tensor | None:
        """The experts of a layer that are replayed, [S, K], where S is `count`; None if there are none."""
        if self.records:
            return None
        return self.chosen.get(layer) if experts_TLK is None else _own(experts_TLK, count)[:, layer]

    def note(self, differs_S: torch.Tensor, known_S: torch.Tensor) -> None:
        """Takes the differences of one more layer."""
        self.known_S = known_S
        self.differs_S = differs_S if self.differs_S is None else self.differs_S | differs_S


class ReplayedRouting(RouterReplay):
    """Stands between a layer's router and its top-k."""

    def __init__(self, layer: int) -> None:
        """`layer` is the place of the layer in the model. Megatron's list of all routers is left alone."""
        self.layer = layer
        self.packed: Any = None
        """The row that the layer computes; one without `routing` leaves the choice to the router."""

    def get_replay_topk(
        self,
        scores: torch.Tensor,
        topk: int,
        num_groups: int | None = None,
        group_topk: int | None = None,
        default_compute_topk: Callable[..., Any] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Scores and ids of each token's experts, both [S, K], from scores [S, E]; the highest score first, as in a top-k."""
        assert default_compute_topk is not None
        values_SK, own_SK = default_compute_topk(scores, topk, num_groups, group_topk)
        routing = getattr(self.packed, "routing", None)
        if routing is None:
            return values_SK, own_SK
        if routing.records:
            routing.chosen[self.layer] = own_SK.to(getattr(torch, id_type(scores.shape[1])))
        given_SK = routing.given(self.packed.experts_TLK, self.layer, len(scores))
        if given_SK is None:
            return values_SK, own_SK
        ids_SK = given_SK.long()
        known_S = ids_SK[:, 0] != unknown(str(given_SK.dtype).removeprefix("torch."))
        ids_SK = torch.where(known_S.unsqueeze(1), ids_SK, own_SK)
        replayed_SK, order_SK = scores.gather(1, ids_SK).sort(dim=1, descending=True)
        differs_S = (ids_SK.sort(dim=1).values != own_SK.sort(dim=1).values).any(1)
        routing.note(differs_S, known_S & _own(self.packed.is_token_T, len(scores)))
        return replayed_SK, ids_SK.gather(1, order_SK)


class Replay:
    """The replay of one engine, as `trainer.routing_replay` says."""

    def __init__(self, kind: RoutingReplay, parts: Sequence[Any]) -> None:
        """Attaches to the routers of the model's parts, unless every router chooses for itself."""
        self._kind = kind
        self._recorded: dict[tuple[int, int], list[Routing]] = {}
        """Experts that the trainer's own pass chose, by version and number of the shard; those of one batch."""
        if self._kind is not RoutingReplay.none:
            for part in parts:
                for layer in part.decoder.layers:
                    _attach(layer)

    def of_old_logprobs(self, shard: Shard, num_rows: int) -> list[Routing] | None:
        """The routing of the pass for the old logprobs of a shard, one for each row: recorded for R2, replayed for R3."""
        if self._kind is not RoutingReplay.trainer:
            return self.of_update(shard, num_rows)
        routings = [Routing(records=True) for _ in range(num_rows)]
        self._recorded = {key: kept for key, kept in self._recorded.items() if key[0] == shard.version}
        self._recorded[shard.version, shard.number] = routings
        return routings

    def of_update(self, shard: Shard, num_rows: int) -> list[Routing] | None:
        """The routing of a pass with gradients; None if the routers choose.

        Without a pass for old logprobs the weights of R2's choice are those of this pass itself.
        """
        if self._kind is RoutingReplay.rollout:
            return [Routing() for _ in range(num_rows)]
        recorded = self._recorded.get((shard.version, shard.number))
        return recorded and [Routing(chosen=each.chosen) for each in recorded]


def _own(values_T: torch.Tensor, count: int) -> torch.Tensor:
    """This rank's share of values of the row's tokens; all of them unless tensor-parallel ranks share the tokens."""
    first = parallel_state.get_tensor_model_parallel_rank() * count if count < len(values_T) else 0
    return values_T[first : first + count]


def _attach(layer: Any) -> None:
    if layer.mlp.router.router_replay is not None:  # by another engine with the same model
        return
    replayed = layer.mlp.router.router_replay = ReplayedRouting(layer.layer_number - 1)

    def take_row(module: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        replayed.packed = options["packed_seq_params"]

    layer.register_forward_pre_hook(take_row, with_kwargs=True)


def differences(routings: list[Routing] | None) -> dict[str, float]:
    """The number of replayed tokens, and of those that some router would have sent to other experts, over all ranks.

    A collective of all ranks.
    """
    if routings is None:
        return {}
    noted = [(each.differs_S & each.known_S, each.known_S) for each in routings if each.differs_S is not None]  # type: ignore[operator]
    stages = parallel_state.get_pipeline_model_parallel_world_size()
    counts = torch.zeros(2, dtype=torch.double, device=parallel.device())
    if noted:  # a rank without rows takes part in the sum over all ranks
        differs, known = (torch.cat(parts) for parts in zip(*noted))
        differs = differs.int()
        if stages > 1:  # which each have other layers of the same tokens
            dist.all_reduce(differs, op=dist.ReduceOp.MAX, group=parallel_state.get_pipeline_model_parallel_group())
        counts = torch.stack([differs.sum(), known.sum()]).double()
    if dist.get_world_size() > 1:
        dist.all_reduce(counts)
    num_differing, num_known = (counts / stages).tolist()
    return {ROUTING_DIFFERENCE: num_differing, NUM_REPLAYED: num_known}
