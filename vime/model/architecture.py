"""The architecture of a Hugging Face checkpoint, read from its `config.json` without importing transformers."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vime.config import Family, ModelConfig
from vime.errors import ConfigError, Problem

SUPPORTED_ROPE = ("default", "llama3")
LLAMA3_ROPE = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""What Megatron-core assumes for llama3 scaling; only the factor may differ."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """Shape and options of a decoder-only model, after the names of `config.json`."""

    family: Family
    num_layers: int
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    tie_word_embeddings: bool
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling_factor: float | None
    """Factor of llama3's scaling, None without scaling."""
    num_experts: int = 0
    num_experts_per_token: int = 0
    moe_intermediate_size: int = 0
    norm_topk_prob: bool = False

    @property
    def has_qkv_bias(self) -> bool:
        """Qwen2 adds a bias to queries, keys and values."""
        return self.family is Family.qwen2

    @property
    def has_qk_norm(self) -> bool:
        """Qwen3 normalizes queries and keys per head."""
        return self.family in (Family.qwen3, Family.qwen3_moe)


def checkpoint_folder(checkpoint: str) -> Path:
    """The folder of a checkpoint: itself if it is one, otherwise the download of a Hugging Face id."""
    if Path(checkpoint).is_dir():
        return Path(checkpoint)
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(checkpoint, allow_patterns=["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]))


def read_architecture(folder: Path) -> Architecture:
    """Reads `config.json` as transformers 4 or 5 wrote it. Raises `ConfigError` for what has no Megatron counterpart here."""
    raw = json.loads((folder / "config.json").read_text())
    rope = raw.get("rope_parameters") or {"rope_theta": raw.get("rope_theta", 10000.0), **(raw.get("rope_scaling") or {})}
    problems = _unsupported(raw, rope)
    if problems:
        raise ConfigError(problems)
    return Architecture(
        family=Family(raw["model_type"]),
        num_layers=raw["num_hidden_layers"],
        hidden_size=raw["hidden_size"],
        num_attention_heads=raw["num_attention_heads"],
        num_key_value_heads=raw.get("num_key_value_heads") or raw["num_attention_heads"],
        head_dim=raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"],
        intermediate_size=raw["intermediate_size"],
        vocab_size=raw["vocab_size"],
        tie_word_embeddings=raw.get("tie_word_embeddings", False),
        max_position_embeddings=raw["max_position_embeddings"],
        rms_norm_eps=raw.get("rms_norm_eps", 1e-6),
        rope_theta=rope["rope_theta"],
        rope_scaling_factor=rope["factor"] if _rope_type(rope) == "llama3" else None,
        num_experts=raw.get("num_experts") or raw.get("num_local_experts") or 0,
        num_experts_per_token=raw.get("num_experts_per_tok") or 0,
        moe_intermediate_size=raw.get("moe_intermediate_size") or 0,
        norm_topk_prob=raw.get("norm_topk_prob", False),
    )


def check_shape(architecture: Architecture, model: ModelConfig) -> None:
    """Raises `ConfigError`, naming every field in which the checkpoint differs from the configured model."""
    names = ["family", "num_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim"]
    names += ["vocab_size", "tie_word_embeddings", "num_experts"]
    if not architecture.num_experts:
        names.append("intermediate_size")
    problems = [
        Problem(
            key=f"model.{name}",
            value=getattr(model, name),
            remedy=f"the checkpoint {model.checkpoint} has {getattr(architecture, name)}; choose another model=, or use that",
        )
        for name in names
        if getattr(model, name) != getattr(architecture, name)
    ]
    if problems:
        raise ConfigError(problems)


def _rope_type(rope: dict[str, Any]) -> str:
    return rope.get("rope_type") or rope.get("type") or "default"


def _unsupported(raw: dict[str, Any], rope: dict[str, Any]) -> list[Problem]:
    problems = []
    families = [family.value for family in Family]
    if raw.get("model_type") not in families:
        problems.append(
            Problem(key="model.checkpoint", value=raw.get("model_type"), remedy=f"families with a bridge: {families}")
        )
    if _rope_type(rope) not in SUPPORTED_ROPE:
        problems.append(Problem(key="rope_type", value=_rope_type(rope), remedy=f"supported rotary embeddings: {SUPPORTED_ROPE}"))
    elif _rope_type(rope) == "llama3" and any(rope.get(name, value) != value for name, value in LLAMA3_ROPE.items()):
        problems.append(Problem(key="rope_parameters", value=rope, remedy=f"llama3 scaling needs {LLAMA3_ROPE}"))
    for name in ("use_sliding_window", "attention_bias", "mlp_bias"):
        if raw.get(name) and not (name == "attention_bias" and raw.get("model_type") == "qwen2"):
            problems.append(Problem(key=name, value=raw[name], remedy="not supported; use a checkpoint without it"))
    return problems
