"""Trained adapters (LoRA) in vLLM: what a weight sync brings is an adapter, and requests name the one that computes them.

vLLM's own way gives each version of an adapter a name. Here an adapter takes the place of its version before while generation is
paused, the prefix cache is cleared, and requests in flight go on under it. So versions, their labels and restarts are those of
every sync, and no server holds an adapter of an earlier version. With several adapters the label of a token has the versions of
all (`search:3 math:7`).
"""

import json
import os
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vime.weights.payload import ADAPTER, AWAITS_ADAPTER

PREFIX = "base_model.model."
"""Beginning of the names that PEFT gives to the tensors of an adapter."""
A, B = ".lora_A.weight", ".lora_B.weight"
EMBEDDING, LOOKUP = "embed_tokens", (".lora_embedding_A", ".lora_embedding_B")


@dataclass(frozen=True, kw_only=True, slots=True)
class SentAdapter:
    """An adapter that a sync has sent: its folder in PEFT's format, and its tensors as they were hashed.

    Example: `SentAdapter(folder=Path("/dev/shm/vime-1a2b/actor-v3-adapter"), tensors={"base_model.model….lora_A.weight": …})`.
    """

    folder: Path
    tensors: dict[str, torch.Tensor]

    @property
    def number(self) -> int:
        """vLLM's number of it."""
        return number_of(self.folder.name.rpartition("-v")[0])

    def load(self, model: Any, vllm_config: Any) -> None:
        """Puts it into the place of the present one."""
        from vllm.lora.request import LoRARequest
        from vllm.lora.worker_manager import LRUCacheWorkerLoRAManager

        reader, manager = LRUCacheWorkerLoRAManager(vllm_config, torch.device("cpu"), {}), model.lora_manager
        reader._adapter_manager = manager
        read = reader._load_adapter(LoRARequest(lora_name=self.folder.name, lora_int_id=self.number, lora_path=str(self.folder)))
        manager.remove_adapter(self.number)
        manager.add_adapter(read)
        manager.activate_adapter(self.number)

    @torch.no_grad()
    def check(self, model: Any) -> dict[str, Any]:
        """Compares all that the layers compute with to what was sent: `wrong` and `unread`, a line or name each, and `seconds`.

        A layer to which nothing was sent must have an adapter of zeros.
        """
        started, manager = time.monotonic(), model.lora_manager
        wrong, left = list[str](), set(self.tensors)
        if self.number not in manager.lora_index_to_id:
            return {"wrong": ["no adapter is active"], "unread": [], "seconds": time.monotonic() - started}
        slot = manager.lora_index_to_id.index(self.number)
        for name, layer in manager.modules.items():
            if isinstance(layer.lora_a_stacked, torch.Tensor):  # of the embedding or the head, which are whole on every process
                names = [f"{PREFIX}{name}{matrix}" for matrix in (LOOKUP if name.endswith(EMBEDDING) else (A, B))]
                left -= set(names)
                held = layer.lora_a_stacked[slot].squeeze(0), layer.lora_b_stacked[slot, 0]
                held = (held[0].t(), held[1]) if name.endswith(EMBEDDING) else held
                for own, matrix, factor in zip(names, held, (1.0, self._scale), strict=True):
                    wrong += _difference(own, matrix, self.tensors.get(own), factor=factor)
                continue
            above, _, own = name.rpartition(".")
            parts = [f"{PREFIX}{above}.{part}" for part in manager.packed_modules_mapping.get(own) or [own]]
            left -= {f"{part}{matrix}" for part in parts for matrix in (A, B)}
            sent_a, sent_b = ([self.tensors.get(f"{part}{matrix}") for part in parts] for matrix in (A, B))
            if layer.tp_size > 1:
                sent_a, sent_b = _cut(layer.slice_lora_a, sent_a), _cut(layer.slice_lora_b, sent_b)
            for part, held_a, held_b, a, b in zip(parts, layer.lora_a_stacked, layer.lora_b_stacked, sent_a, sent_b, strict=True):
                wrong += _difference(f"{part}{A}", held_a[slot, 0], a, factor=1.0)
                wrong += _difference(f"{part}{B}", held_b[slot, 0], b, factor=self._scale)  # vLLM has the factor in it
        return {"wrong": wrong, "unread": sorted(left), "seconds": time.monotonic() - started}

    @property
    def _scale(self) -> float:
        described = json.loads((self.folder / "adapter_config.json").read_text())
        return described["lora_alpha"] / described["r"]


def check_all(adapters: Iterable[SentAdapter], model: Any) -> dict[str, Any]:
    """The checks of several adapters as one."""
    checks = [adapter.check(model) for adapter in adapters]
    joined = {name: [line for check in checks for line in check[name]] for name in ("wrong", "unread")}
    return {**joined, "seconds": sum(check["seconds"] for check in checks)}


def names() -> list[str]:
    """The adapters of this server; none if it gets whole weights."""
    return [name for name in os.environ.get(AWAITS_ADAPTER, "").split(",") if name]


def number_of(name: str) -> int:
    """vLLM's number of an adapter."""
    return 1 + names().index(name)


def sent_adapter(files: list[str], tensors: dict[str, torch.Tensor]) -> SentAdapter | None:
    """The adapter in files that have arrived; None if they hold weights of the model."""
    if not tensors or not all(name.startswith(PREFIX) for name in tensors):
        return None
    (file,) = files
    return SentAdapter(folder=Path(file).parent, tensors=tensors)


def _cut(cut: Any, parts: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """This rank's parts of tensors, by the function of a layer that takes one, or a list where it has several."""
    if len(parts) > 1:
        return cut(parts)
    return [None if part is None else cut(part) for part in parts]


def _difference(name: str, held: torch.Tensor, sent: torch.Tensor | None, *, factor: float) -> list[str]:
    """A line about the largest difference, if there is one; where nothing was sent, and beyond an adapter's rank, are zeros."""
    expected = torch.zeros_like(held)
    if sent is not None:
        expected[: sent.shape[0], : sent.shape[1]] = sent.to(held) * factor
    largest = (held - expected).abs().max().item()
    return [] if largest == 0.0 else [f"{name} differs from what was sent, by up to {largest:.3g}"]


def adapt_requests() -> None:
    """Makes an engine that gets adapters compute every request with the one that it names, or with the first.

    Requests that began before an adapter's first sync began with the base: they end with it, and their clients send them again.
    """
    engine = getattr(sys.modules.get("vllm.v1.engine.core"), "EngineCoreProc", None)
    if engine is None or not names() or hasattr(engine, "adapts_requests"):
        return
    engine.adapts_requests = True
    add_request, set_weight_version = engine.add_request, engine.set_weight_version

    def add_adapted(self: Any, request: Any, request_wave: int = 0) -> None:
        name = _wanted(request)
        if name in _versions(self._weight_version):
            request.lora_request = _request(name)
            request.block_hashes.clear()  # made without the adapter, whose keys and values no other one may use
            request.update_block_hashes()
        add_request(self, request, request_wave)

    def set_and_adapt(self: Any, weight_version: str) -> None:
        (name,) = new = _versions(weight_version)
        known = _versions(self._weight_version)
        set_weight_version(self, " ".join(f"{each}:{version}" for each, version in (known | new).items()))
        if name not in known:
            requests = self.scheduler.requests.items()
            _end(self, [each for each, request in requests if request.lora_request is None and _wanted(request) == name])

    engine.add_request, engine.set_weight_version = add_adapted, set_and_adapt


def score_with_adapters() -> None:
    """Makes vLLM's CPU model runner compute the logits of a prompt with its request's own adapter.

    An adapter of the head is looked up by the tokens that a step samples, one for each request. For a prompt's tokens this gives
    the adapters of other requests, or ends the engine where their number is another one.
    """
    from vllm.lora.layers import LoRAMapping
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    of_all = CPUModelRunner._get_prompt_logprobs_dict

    def of_each(self: Any, hidden_states: torch.Tensor, num_scheduled_tokens: dict[str, int]) -> dict[str, Any]:
        wanted, found = self.num_prompt_logprobs, dict[str, Any]()
        if self.lora_config is None:
            return of_all(self, hidden_states, num_scheduled_tokens)
        for name in [name for name in wanted if name in num_scheduled_tokens]:
            request, index = self.requests[name], self.input_batch.req_id_to_index[name]
            num_left = len(request.prompt_token_ids or ()) - 1 - request.num_computed_tokens
            adapters = (int(self.input_batch.request_lora_mapping[index]),) * min(num_scheduled_tokens[name], num_left)
            if adapters:
                self.lora_manager._adapter_manager.set_adapter_mapping(LoRAMapping(adapters, adapters, is_prefill=True))
            self.num_prompt_logprobs = {name: wanted[name]}
            found |= of_all(self, hidden_states, num_scheduled_tokens)
            if name not in self.num_prompt_logprobs:  # its prompt is finished
                del wanted[name]
            self.num_prompt_logprobs = wanted
        return found

    CPUModelRunner._get_prompt_logprobs_dict = of_each


def _versions(label: str) -> dict[str, str]:
    """The version of each adapter in the label of a token."""
    return dict(part.split(":") for part in label.split() if ":" in part)


def _wanted(request: Any) -> str:
    """The adapter that a request is to be computed with; empty for the base."""
    sampling = request.sampling_params
    return ((sampling.extra_args or {}) if sampling is not None else {}).get(ADAPTER, names()[0])


def _end(engine: Any, requests: list[str]) -> None:
    from vllm.v1.request import RequestStatus

    if requests:
        engine._send_abort_outputs(engine.scheduler.finish_requests(requests, RequestStatus.FINISHED_ABORTED))


def _request(name: str) -> Any:
    from vllm.lora.request import LoRARequest

    return LoRARequest(lora_name=name, lora_int_id=number_of(name), lora_path="loaded by a weight sync")
