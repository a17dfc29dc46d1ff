"""Layers that take new weights on a CPU, beside those that generate.

A server that loads during its pause is idle while every weight is copied and packed. A shadow is a second set of the layers that
hold weights: it is loaded and proven while the server goes on under the old weights, and in the pause each layer only exchanges
its weights with its shadow's. It takes the memory of the weights a second time, until the old ones are freed.
"""

import os
from collections.abc import Iterator
from types import MethodType
from typing import Any

import torch

from vime.inside_vllm.erase import erase_what_is_materialized, erased_product
from vime.inside_vllm.exchange import is_installed
from vime.inside_vllm.repack import repack_on_cpu
from vime.inside_vllm.value_sample import is_exact
from vime.machine import available_memory_bytes, memory_bytes
from vime.weights.payload import NUM_SYNCED_SERVERS

ROOM = 1.5
"""Memory that a shadow is given, as a share of the weights' size: its layers, and the extra memory to pack one of them."""
RESERVE = 0.1
"""Share of our memory that stays free; Ray ends processes where less than half of that is left."""
UNKNOWN_SERVERS = 4
"""Number of servers that is assumed where a server does not know it, because no run has started it."""


def can_shadow(model: Any, vllm_config: Any, *, num_bytes: int) -> bool:
    """True if a model can have a shadow: on a CPU, not compiled, not quantized, without experts, with room for its weights twice.

    Compiled code and captured graphs hold on to the memory of the weights that they were made with. The server must be one of
    `vime.inside_vllm.vllm_server`, which can exchange weights.
    """
    from vllm.platforms import current_platform

    if not is_installed() or not current_platform.is_cpu():
        return False
    if not vllm_config.model_config.enforce_eager or vllm_config.lora_config is not None:
        return False
    if not all(_is_plain(layer) for layer in model.modules()):
        return False
    num_servers = int(os.environ.get(NUM_SYNCED_SERVERS, UNKNOWN_SERVERS))
    return available_memory_bytes() - RESERVE * memory_bytes() >= ROOM * num_servers * num_bytes


class Shadow:
    """The shadow of one model, for one version of the weights: `model.load_weights`, `finish`, then `exchange` and `release`.

    `model` computes with the new weights after `finish`, and with the old ones after `exchange`. What vLLM's loader raises is
    raised.
    """

    def __init__(self, model: Any) -> None:
        self._pairs: list[tuple[Any, Any]] = []
        self._tied: list[tuple[Any, str, Any]] = []
        self.model = self._copy(model, {})
        self._prepare()

    def finish(self, model_config: Any) -> None:
        """Packs the loaded weights; weights that were not loaded are NaN."""
        from vllm.model_executor.model_loader.reload import layerwise, meta

        for _, shadow in self._pairs:
            info = layerwise.get_layerwise_info(shadow)
            if info.can_load() and info.load_numel == 0:  # vLLM would pack the NaN, where the proof does not look
                meta.materialize_layer(shadow, info)
                info.reset()
        layerwise.finalize_layerwise_reload(self.model, model_config)
        for layer, name, owner in self._tied:
            layer._parameters[name] = getattr(owner, name)
        repack_on_cpu(self.model)

    def exchange(self) -> None:
        """Gives the model's layers the shadow's weights, and the shadow theirs; the model must not be computing."""
        for layer, shadow in self._pairs:
            mine, its = layer.__dict__, shadow.__dict__
            for key in [key for key in mine.keys() | its.keys() if key != "_modules" and mine.get(key) is not its.get(key)]:
                _exchange(mine, its, key)
            _bind(layer, instead_of=shadow)

    def release(self) -> None:
        """Frees the shadow's memory; it cannot be used any more."""
        for _, shadow in self._pairs:
            shadow._parameters.clear()
            shadow.__dict__.pop("cpu_linear", None)

    def _copy(self, layer: Any, copies: dict[int, Any]) -> Any:
        """A layer's copy, whose tensors are still the layer's own; layers without any parameter are shared."""
        if id(layer) in copies:
            return copies[id(layer)]
        if next(layer.parameters(), None) is None:
            return layer
        copy = copies[id(layer)] = layer.__new__(type(layer))
        copy.__dict__ = dict(layer.__dict__)
        for key in ("_parameters", "_buffers"):
            copy.__dict__[key] = dict(layer.__dict__[key])
        copy.__dict__["_modules"] = {name: child and self._copy(child, copies) for name, child in layer._modules.items()}
        if any(True for _ in _own(layer)):
            self._pairs.append((layer, copy))
        return copy

    def _prepare(self) -> None:
        """Gives the shadow parameters of its own, without memory so far, and vLLM's loaders that wait for a whole layer."""
        from vllm.model_executor.model_loader.reload import layerwise, meta

        erase_what_is_materialized()
        owners: dict[int, Any] = {}
        for layer, shadow in self._pairs:
            kept = layerwise.get_layerwise_info(layer)
            info = layerwise.get_layerwise_info(shadow)
            info.restore_metadata, info.restore_device = kept.restore_metadata, kept.restore_device
            if hasattr(shadow, "cpu_linear"):
                shadow.cpu_linear = erased_product(shadow)
            for name, parameter in _own(layer):
                if id(parameter) in owners:
                    self._tied.append((shadow, name, owners[id(parameter)]))
                    continue
                owners[id(parameter)] = shadow
                blank: Any = meta.to_meta_tensor(kept.restore_metadata[0].get(name, parameter))
                if hasattr(blank, "weight_loader"):  # an update without a shadow leaves its own there
                    blank.weight_loader = layerwise._get_original_loader(blank)
                # vLLM expects what it never moves to "meta" to have memory.
                shadow._parameters[name] = meta.materialize_meta_tensor(blank) if name in meta.SKIP_TENSORS else blank
            _bind(shadow, instead_of=layer)
            if not any(shadow is tied for tied, _, _ in self._tied):
                layerwise.initialize_online_processing(shadow)


def _is_plain(layer: Any) -> bool:
    """True if vLLM holds a layer's parameters as they are sent, or packed into one product."""
    from vllm.model_executor.layers.attention import is_deferred_attention_layer
    from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts

    if not any(True for _ in _own(layer)):
        return True
    if isinstance(layer, RoutedExperts) or is_deferred_attention_layer(layer):
        return False
    return getattr(layer, "quant_method", None) is None or is_exact(layer)


def _own(layer: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """A layer's own parameters."""
    return ((name, parameter) for name, parameter in layer._parameters.items() if parameter is not None)


def _exchange(mine: dict[str, Any], its: dict[str, Any], key: str) -> None:
    held = [(values, values.pop(key)) for values in (mine, its) if key in values]
    for values, value in held:
        (its if values is mine else mine)[key] = value


def _bind(layer: Any, *, instead_of: Any) -> None:
    """Makes the loaders of a layer's parameters load into `layer`; vLLM leaves a mark where the metadata's layer was."""
    from vllm.model_executor.model_loader.reload.sanitize import layer_ref_sentinel

    for _, parameter in _own(layer):
        for key, value in vars(parameter).items():
            if isinstance(value, MethodType) and (value.__self__ is instead_of or value.__self__ is layer_ref_sentinel):
                vars(parameter)[key] = value.__func__.__get__(layer)
