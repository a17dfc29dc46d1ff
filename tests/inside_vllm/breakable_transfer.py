"""A worker extension that tests use to break the weight transfer of a running server on purpose, through `/collective_rpc`."""

from collections.abc import Iterable
from typing import Any

from vime.inside_vllm import adapter, early_exit, repack, transfer


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

    def drop_from_draft(self, *names: str) -> None:
        """From now on these tensors are kept from the draft's loader alone; without names, none is."""
        early_exit.is_drafts = lambda name, **layers: name not in names and _IS_DRAFTS(name, **layers)

    def break_adapter(self, way: str) -> None:
        """From now on an adapter is not loaded (`none`), or without its last layer (`part`), under another factor (`scale`), or
        the present one again (`old`).
        """
        present = self.weight_transfer_engine._arrival.adapter

        def load(sent: adapter.SentAdapter, model: Any, vllm_config: Any) -> None:
            if way == "none":
                return
            _LOAD_ADAPTER(sent if way != "old" else present, model, vllm_config)
            manager = model.lora_manager
            if way == "part":
                list(manager.modules.values())[-1].reset_lora(0)
            if way == "scale":
                for layer in manager.modules.values():
                    for part in layer.lora_b_stacked:
                        part *= 1.001

        kind: Any = adapter.SentAdapter
        kind.load = load if way else _LOAD_ADAPTER


_REPACK = repack.repack_embeddings
_IS_DRAFTS = early_exit.is_drafts
_CAN_SHADOW = transfer.can_shadow
_LOAD_ADAPTER = adapter.SentAdapter.load
_LOADERS: dict[Any, Any] = {}
