"""Families of models: a file of this folder for each, and `ModelFamily`, the object that it defines.

    family_of("qwen3").qk_norm                                  # True

`model.family` takes the names of the files. Checkpoints are read, named, sized, trained, rehearsed and tested by these objects
alone; what a family has in common with all others (grouped queries, rotary embeddings, RMSNorm before attention and feed-forward
network, gated products) is not said again.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any, Literal

from vime.config import Family


def _nothing(raw: dict[str, Any]) -> dict[str, Any]:
    return {}


@dataclass(frozen=True, kw_only=True)
class ModelFamily:
    """Everything in which the models of one family differ from those of others. Example: `vime/model/families/qwen3.py`."""

    config_class: str
    """Class of its configuration in transformers."""
    qkv_bias: bool = False
    """True if queries, keys and values have biases."""
    has_biases: bool = False
    """True if the output of attention, routers and experts have biases as well."""
    has_sinks: bool = False
    """True if each head of attention has a score that takes a share of the softmax and has no value (arXiv 2309.17453)."""
    stacks_experts: bool = False
    """True if a checkpoint has the experts of a layer in one tensor, with inputs before outputs, and gate and up projection in
    turn."""
    qk_norm: bool = False
    """True if queries and keys are normalized per head."""
    post_norms: bool = False
    """True if the outputs of attention and feed-forward network are normalized as well, before they are added."""
    gates_attention: bool = False
    """True if the output of attention is multiplied by the sigmoid of a gate, which is projected with the queries."""
    has_linear_attention: bool = False
    """True if most layers have linear attention instead (`model.linear_attention`)."""
    norm_adds_one: bool = False
    """True if norms multiply by 1 + weight, in float32."""
    scales_embeddings: bool = False
    """True if embeddings are multiplied by the square root of the hidden size before the first layer."""
    activation: Literal["silu", "gelu_tanh", "quick_gelu"] = "silu"
    """The function of the gate. With `quick_gelu` both halves are clamped (`Architecture.gate_limit`), and 1 is added to the
    linear one."""
    serves_vocabulary: bool = False
    """True if vLLM's class takes adapters of the embedding and the head."""
    read: Callable[[dict[str, Any]], dict[str, Any]] = _nothing
    """Fields of `Architecture` beyond those that all families have, from `config.json`."""
    rope: Callable[[dict[str, Any]], dict[str, Any]] = _nothing
    """Parameters of the rotary embeddings where `config.json` has them in a form of its own; empty otherwise."""
    allowed: tuple[str, ...] = ()
    """Fields of `config.json` that are refused in other families when they are true."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Fields of `config.json` that are refused when they are set, and what is trained instead."""
    tensors: Mapping[str, str] = field(default_factory=dict)
    """Hugging Face names of parameters whose name is another than in all families, or that only this one has, by the Megatron
    name within a layer. They are whole on every rank."""
    rope_theta: float = 1_000_000.0
    """Base of the rotary embeddings of a random model in a rehearsal."""
    random: Callable[[Any], dict[str, Any]] = lambda model: {}
    """Further fields of the configuration of a random model of the shape of a `ModelConfig`."""
    tokenizer: Literal["qwen2.5", "qwen3"] | None = None
    """Its tokenizer in a rehearsal, where that can be had; None for bytes."""
    test_shape: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of `config.json` of the small random model with which the family is tested."""

    @property
    def norms_per_layer(self) -> int:
        """Number of norms of a layer as wide as the hidden states."""
        return 4 if self.post_norms else 2


@cache
def family_of(name: "Family | str") -> ModelFamily:
    """The family of this name, that of its file."""
    return import_module(f"{__name__}.{Family(name).value}").FAMILY
