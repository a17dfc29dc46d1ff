"""A worker extension that tests use to break the weight transfer of a running server on purpose, through `/collective_rpc`."""

from collections.abc import Iterable
from typing import Any

from vime.inside_vllm import repack, transfer


class BreakableReport(transfer.WeightReport):
    """`WeightReport` with switches."""

    def skip_repack(self) -> None:
        """From now on, embedding and head are not packed again after an update."""
        repack.repack_embeddings = lambda model: None

    def mend_repack(self) -> None:
        """Undoes `skip_repack`."""
        repack.repack_embeddings = _REPACK

    def refuse_shadow(self) -> None:
        """From now on, weights are loaded in the pause, as where there is no room for a shadow."""
        transfer.can_shadow = lambda *args, **kwargs: False

    def allow_shadow(self) -> None:
        """Undoes `refuse_shadow`."""
        transfer.can_shadow = _CAN_SHADOW

    def drop(self, *names: str) -> None:
        """From now on these tensors, whose bytes arrive, are kept from the model's loader; without names, none is."""
        kind: Any = type(self.weight_transfer_engine.model)
        load = _LOADERS.setdefault(kind, kind.load_weights)

        def load_without(model: Any, weights: Iterable[tuple[str, Any]]) -> Any:
            return load(model, (pair for pair in weights if pair[0] not in names))

        kind.load_weights = load_without


_REPACK = repack.repack_embeddings
_CAN_SHADOW = transfer.can_shadow
_LOADERS: dict[Any, Any] = {}
