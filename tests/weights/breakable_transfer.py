"""A worker extension that tests use to break the weight transfer of a running server on purpose, through `/collective_rpc`."""

from collections.abc import Iterable
from typing import Any

from vime.weights import transfer


class BreakableReport(transfer.WeightReport):
    """`WeightReport` with switches."""

    def skip_repack(self) -> None:
        """From now on, embedding and head are not packed again after an update."""
        transfer.repack_embeddings = lambda model: None

    def mend_repack(self) -> None:
        """Undoes `skip_repack`."""
        transfer.repack_embeddings = _REPACK

    def drop(self, *names: str) -> None:
        """From now on these tensors, whose bytes arrive, are kept from the model's loader; without names, none is."""
        model: Any = self.weight_transfer_engine.model
        vars(model).pop("load_weights", None)
        if names:
            load = model.load_weights

            def load_without(weights: Iterable[tuple[str, Any]]) -> Any:
                return load(pair for pair in weights if pair[0] not in names)

            object.__setattr__(model, "load_weights", load_without)


_REPACK = transfer.repack_embeddings
