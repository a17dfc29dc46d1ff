"""The architecture of a Hugging Face checkpoint, read from its `config.json` without importing transformers."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vime.config import Family, LinearAttentionConfig, ModelConfig
from vime.errors import ConfigError, Problem
from vime.model.families import ModelFamily, family_of

ROPE_TYPE, ROPE_THETA = "rope_type", "rope_theta"
ROPE_FIELDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "default": ((), ()),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"), ()),
    "yarn": (("factor", "original_max_position_embeddings"), ("beta_fast", "beta_slow", "truncate")),
}
"""Supported scalings of rotary embeddings: fields that each needs, and fields that it may have. YaRN's attention factor is always
the one that follows from `factor`."""
OF_CHECKPOINTS = ROPE_FIELDS | {"linear": (("factor",), ())}
"""Scalings that a checkpoint may bring."""


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
    rope_scaling: dict[str, Any]
    """Scaling of the rotary embeddings as in `rope_parameters`, without `rope_theta`; empty without scaling."""
    num_experts: int = 0
    num_experts_per_token: int = 0
    moe_intermediate_size: int = 0
    norm_topk_prob: bool = False
    window: int = 0
    """Tokens that local attention sees, the present one among them; 0 without local attention."""
    local_layers: list[bool] = field(default_factory=list)
    """True for each layer of local attention; empty without."""
    local_rope_theta: float = 0.0
    linear_attention: LinearAttentionConfig = field(default_factory=LinearAttentionConfig)
    """The layers of linear attention; those of all other families are none."""
    rotary_share: float = 1.0
    """Share of the channels of each head that rotary embeddings turn, the first ones."""
    gate_limit: float | None = None
    """The value to which the halves of a gated product are clamped, the gate from above, the linear half from both sides."""
    softmax_scale: float | None = None
    """Factor of the attention scores; None for one over the square root of the heads' width."""

    @property
    def of(self) -> ModelFamily:
        """The family."""
        return family_of(self.family)

    def rope_fields(self) -> dict[str, Any]:
        """The fields of `config.json` about rotary embeddings."""
        rope = {ROPE_THETA: self.rope_theta, **(self.rope_scaling or {ROPE_TYPE: "default"})}
        return {"rope_parameters": rope, "max_position_embeddings": self.max_position_embeddings}


def checkpoint_folder(checkpoint: str) -> Path:
    """The folder of a checkpoint: itself if it is one, otherwise the download of a Hugging Face id."""
    if Path(checkpoint).is_dir():
        return Path(checkpoint)
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(checkpoint, allow_patterns=["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]))


def read_architecture(folder: Path, *, rope_parameters: dict[str, Any] | None = None) -> Architecture:
    """Reads `config.json` as transformers 4 or 5 wrote it; `rope_parameters`, if there are any, replace the checkpoint's.

    Raises `ConfigError` for settings without a Megatron counterpart here.
    """
    raw = json.loads((folder / "config.json").read_text())
    family = family_of(raw["model_type"]) if raw.get("model_type") in [each.value for each in Family] else None
    own = (
        (family.rope(raw) if family is not None else {})
        or raw.get("rope_parameters")
        or {ROPE_THETA: raw.get(ROPE_THETA, 10000.0), **(raw.get("rope_scaling") or {})}
    )
    rope = {**(rope_parameters or own)}
    rope[ROPE_TYPE] = rope.get(ROPE_TYPE) or rope.pop("type", None) or "default"
    rope.pop("type", None)
    problems = _unsupported(raw, family, rope)
    if rope_parameters and rope.get(ROPE_THETA) != own[ROPE_THETA]:
        remedy = f"the checkpoint was trained with {own[ROPE_THETA]}: use that"
        problems.append(Problem(key="model.rope_parameters.rope_theta", value=rope.get(ROPE_THETA), remedy=remedy))
    if rope_parameters and family is not None and family.rope(raw):
        remedy = f"{raw['model_type']} has rotary embeddings for each kind of layer: leave it empty"
        problems.append(Problem(key="model.rope_parameters", value=rope_parameters, remedy=remedy))
    if problems or family is None:
        raise ConfigError(problems)
    fields: dict[str, Any] = dict(
        family=Family(raw["model_type"]),
        num_layers=raw["num_hidden_layers"],
        hidden_size=raw["hidden_size"],
        num_attention_heads=raw["num_attention_heads"],
        num_key_value_heads=raw.get("num_key_value_heads") or raw["num_attention_heads"],
        head_dim=raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"],
        intermediate_size=raw["intermediate_size"],
        vocab_size=raw["vocab_size"],
        tie_word_embeddings=raw.get("tie_word_embeddings", False),
        max_position_embeddings=scaled_length(rope_parameters) if rope_parameters else raw["max_position_embeddings"],
        rms_norm_eps=raw.get("rms_norm_eps", 1e-6),
        rope_theta=rope[ROPE_THETA],
        rope_scaling={} if rope[ROPE_TYPE] == "default" else {name: rope[name] for name in rope if name != ROPE_THETA},
        num_experts=raw.get("num_experts") or raw.get("num_local_experts") or 0,
        num_experts_per_token=raw.get("num_experts_per_tok") or 0,
        moe_intermediate_size=raw.get("moe_intermediate_size") or 0,
        norm_topk_prob=raw.get("norm_topk_prob", False),
    )
    architecture = Architecture(**(fields | family.read(raw)))
    if architecture.rope_scaling and architecture.rotary_share < 1.0:
        key = "model.rope_parameters" if rope_parameters else "rope_parameters"
        remedy = f"{raw['model_type']} turns a part of each head, by angles that are not scaled: leave it out"
        raise ConfigError([Problem(key=key, value=rope_parameters or rope, remedy=remedy)])
    return architecture


def differences(one: Architecture, other: Architecture) -> str:
    """The fields in which two architectures differ, for messages; empty where one may have the weights of the other.

    Example: `num_layers 4 and 2, rope_theta 1000000 and 10000`. The length for which a model was trained is no such field.
    """
    pairs = ((name, value, asdict(other)[name]) for name, value in asdict(one).items() if name != "max_position_embeddings")
    return ", ".join(f"{name} {_plain(value)} and {_plain(its)}" for name, value, its in pairs if value != its)


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Family) else value


def check_shape(architecture: Architecture, model: ModelConfig) -> None:
    """Raises `ConfigError`, naming every field in which the checkpoint differs from the configured model."""
    names = ["family", "num_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim"]
    names += ["vocab_size", "tie_word_embeddings", "num_experts"]
    if not architecture.num_experts:
        names.append("intermediate_size")
    pairs = {name: (getattr(model, name), getattr(architecture, name)) for name in names}
    for name, value in asdict(model.linear_attention).items():
        pairs[f"linear_attention.{name}"] = (value, getattr(architecture.linear_attention, name))
    problems = [
        Problem(
            key=f"model.{name}",
            value=ours,
            remedy=f"the checkpoint {model.checkpoint} has {theirs}; choose another model=, or use that",
        )
        for name, (ours, theirs) in pairs.items()
        if ours != theirs
    ]
    if problems:
        raise ConfigError(problems)


def scaled_length(rope_parameters: dict[str, Any]) -> int:
    """The longest sequence in tokens that scaled rotary embeddings allow."""
    return int(rope_parameters["factor"] * rope_parameters["original_max_position_embeddings"])


def rope_problems(
    rope: dict[str, Any], *, key: str, kinds: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = ROPE_FIELDS
) -> list[Problem]:
    """Problems of the parameters of rotary embeddings, whose type is `rope["rope_type"]`."""
    kind = rope.get(ROPE_TYPE)
    if kind not in kinds:
        return [Problem(key=f"{key}.{ROPE_TYPE}", value=kind, remedy=f"supported rotary embeddings: {', '.join(kinds)}")]
    needed, possible = kinds[kind]
    missing = [name for name in needed if rope.get(name) is None]
    strange = [name for name in rope if name not in (ROPE_TYPE, ROPE_THETA, *needed, *possible)]
    problems = [Problem(key=f"{key}.{name}", value=None, remedy=f"{kind} needs this number") for name in missing]
    remedy = f"is not supported with {kind}, which has {', '.join((*needed, *possible)) or 'no fields'}"
    return problems + [Problem(key=f"{key}.{name}", value=rope[name], remedy=remedy) for name in strange if kind != "default"]


def _unsupported(raw: dict[str, Any], family: ModelFamily | None, rope: dict[str, Any]) -> list[Problem]:
    problems = []
    if family is None:
        families = [each.value for each in Family]
        remedy = f"supported families: {', '.join(families)}; another one is a file of vime/model/families"
        if (raw.get("text_config") or {}).get("model_type") in families:
            remedy = "it sees images too: use its text model (python tools/convert_checkpoint.py text-model CHECKPOINT FOLDER)"
        problems.append(Problem(key="model.checkpoint", value=raw.get("model_type"), remedy=remedy))
    problems += rope_problems(rope, key="rope_parameters", kinds=OF_CHECKPOINTS)
    for name in ("use_sliding_window", "attention_bias", "mlp_bias"):
        if raw.get(name) and not (family is not None and name in family.allowed):
            problems.append(Problem(key=name, value=raw[name], remedy="not supported; use a checkpoint without it"))
    for name, instead in (family.refused if family is not None else {}).items():
        if raw.get(name):
            problems.append(Problem(key=name, value=raw[name], remedy=f"not supported; use a checkpoint with {instead}"))
    return problems
