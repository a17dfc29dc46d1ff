"""Folders of LoRA adapters in PEFT's format: `adapter_config.json` and `adapter_model.safetensors`.

Nothing here needs torch or PEFT, so that a folder is checked before anything starts.
"""

import hashlib
import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from vime.config import LoraConfig, LoraTarget, ModelConfig
from vime.errors import ConfigError, Problem
from vime.model.size import adapted_shapes, vocabulary_shapes

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
KEY = "trainer.lora"
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks for which vLLM can make room."""
WHOLE_BYTES, SAMPLED_BYTES, STRIDE_BYTES = 2**28, 2**16, 2**24
"""The digest of a base model reads files up to the first size whole, and of larger ones a sample in every stride."""
_TENSOR = re.compile(r"base_model\.model\.model\.layers\.(\d+)\.(?:self_attn|mlp)\.(\w+)\.lora_([AB])\.weight")
_OF_VOCABULARY = re.compile(r"base_model\.model\.(?:model\.(embed_tokens)\.lora_embedding_|(lm_head)\.lora_)([AB])(?:\.weight)?")
_BASE = re.compile(r"base_model\.model\.(?:model\.embed_tokens|lm_head)\.base_layer\.weight")
"""The whole embedding or head, which PEFT writes beside their adapters."""
_ONLY: dict[str, Any] = {
    "bias": "none",
    "use_dora": False,
    "use_rslora": False,
    "fan_in_fan_out": False,
    "modules_to_save": None,
    "rank_pattern": {},
    "alpha_pattern": {},
    "layers_to_transform": None,
    "trainable_token_indices": None,
    "ensure_weight_tying": False,
}
"""Options of PEFT that change what an adapter computes, with the only value that is read here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterShape:
    """The properties of an adapter, without its values.

    Example: `AdapterShape(base="Qwen/Qwen3-8B", rank=16, alpha=32.0, num_layers=36, shapes={LoraTarget.k_proj: (1024, 4096)})`
    adapts the keys of all layers, whose matrix has 1,024 outputs and 4,096 inputs.
    """

    base: str | None
    rank: int
    alpha: float
    num_layers: int
    shapes: dict[LoraTarget, tuple[int, int]]


def read_shape(folder: Path, *, key: str = f"{KEY}.start") -> AdapterShape:
    """The properties of the adapter in a folder.

    Raises `ConfigError` if there is none, if it is more than LoRA, or if its layers differ from each other.
    """

    def refused(remedy: str) -> ConfigError:
        return ConfigError([Problem(key=key, value=str(folder), remedy=remedy)])

    try:
        raw = json.loads((folder / CONFIG).read_text())
        with safe_open(folder / WEIGHTS, framework="numpy") as file:
            tensors = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (OSError, ValueError, SafetensorError) as error:
        raise refused(f"holds no adapter in PEFT's format ({error}): use a folder with {CONFIG} and {WEIGHTS}") from error
    if raw.get("peft_type") != "LORA":
        raise refused(f"is an adapter of the kind {raw.get('peft_type')}; LORA is supported")
    if others := [f"{name}={raw[name]}" for name, value in _ONLY.items() if raw.get(name, value) not in (value, None)]:
        raise refused(f"has {', '.join(others)}, which is not supported: merge it into its model with PEFT, and begin with that")
    names, sizes = {target.value for target in LoraTarget}, dict[tuple[str, str], set[int]]()
    ranks, layers = set[int](), set[int]()
    num_in_layers = num_once = 0
    for name, (outputs, inputs) in tensors.items():
        if _BASE.fullmatch(name):
            continue
        match, once = _TENSOR.fullmatch(name), _OF_VOCABULARY.fullmatch(name)
        target, matrix = (match[2], match[3]) if match else (once[1] or once[2], once[3]) if once else ("", "")
        if target not in names:
            raise refused(f"adapts {name}; supported are {', '.join(target.value for target in LoraTarget)}")
        rank, size = (outputs, inputs) if matrix == "A" else (inputs, outputs)
        ranks.add(rank)
        sizes.setdefault((target, matrix), set()).add(size)
        num_once += once is not None
        if match is not None:
            layers.add(int(match[1]))
            num_in_layers += 1
    whole = {(target, matrix) for target, _ in sizes for matrix in "AB"}
    is_regular = (
        num_in_layers == len(layers) * (len(sizes) - num_once) and layers == set(range(len(layers))) and sizes.keys() == whole
    )
    if ranks != {raw["r"]} or not is_regular or any(len(found) > 1 for found in sizes.values()):
        raise refused(f"does not adapt the same matrices in all layers with rank {raw['r']}, as its {CONFIG} says")
    shapes = {
        target: (min(sizes[target.value, "B"]), min(sizes[target.value, "A"]))
        for target in LoraTarget
        if (target.value, "A") in sizes
    }
    base, alpha = raw.get("base_model_name_or_path"), float(raw["lora_alpha"])
    return AdapterShape(base=base, rank=raw["r"], alpha=alpha, num_layers=len(layers), shapes=shapes)


def start_problems(config: LoraConfig, model: ModelConfig) -> list[Problem]:
    """The differences between a run's settings and the adapter that it begins with."""
    assert config.start is not None, "no adapter to begin with"
    try:
        shape = read_shape(Path(config.start))
    except ConfigError as error:
        return list(error.problems)
    problems = []
    own, theirs = (f"[{','.join(target.value for target in targets)}]" for targets in (config.targets, shape.shapes))
    pairs = {"rank": (config.rank, shape.rank), "alpha": (config.alpha, shape.alpha), "targets": (own, theirs)}
    for name, (wanted, found) in pairs.items():
        if (set(config.targets) != set(shape.shapes)) if name == "targets" else wanted != found:
            problems.append(Problem(key=f"{KEY}.{name}", value=wanted, remedy=f"{config.start} has {found}: use that"))
    if remedy := _other_base(shape, model):
        problems.append(Problem(key=f"{KEY}.start", value=config.start, remedy=f"{remedy}: use an adapter of the run's model"))
    return problems


def _other_base(shape: AdapterShape, model: ModelConfig) -> str | None:
    """The reason why an adapter is not one of this model, or None."""
    once = vocabulary_shapes(model, shape.shapes)
    if shape.num_layers != model.num_layers and once.keys() != shape.shapes.keys():
        return f"adapts {shape.num_layers} layers, and {model.name} has {model.num_layers}"
    expected = adapted_shapes(model, shape.shapes) | once
    for target, found in shape.shapes.items():
        if (wanted := expected.get(target)) != found:
            return f"adapts {target.value} with {found[0]} outputs and {found[1]} inputs, and {model.name} has {wanted}"
    if shape.base is None or shape.base == model.checkpoint:
        return None
    base, own = Path(shape.base), Path(model.checkpoint)
    if base.is_dir() and own.is_dir():
        differs = base_digest(base) != base_digest(own)
    else:  # two ids of the hub; a folder of another machine says nothing
        differs = not base.is_dir() and not own.is_dir() and shape.base.count("/") == 1
    return f"was trained on {shape.base}, and the run's model.checkpoint is {model.checkpoint}" if differs else None


@cache
def base_digest(folder: Path) -> str:
    """A digest of the weights in a folder; samples of large files are enough to tell one model from another."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        length, stride = (size, max(size, 1)) if size <= WHOLE_BYTES else (SAMPLED_BYTES, STRIDE_BYTES)
        with path.open("rb") as file:
            for start in range(0, size, stride):
                file.seek(start)
                digest.update(file.read(length))
    return digest.hexdigest()


def describe(config: LoraConfig, *, base: str) -> dict[str, Any]:
    """The content of `adapter_config.json` for an adapter of a run."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": config.rank,
        "lora_alpha": int(config.alpha) if config.alpha == int(config.alpha) else config.alpha,
        "lora_dropout": 0.0,
        "target_modules": [target.value for target in config.targets],
        "inference_mode": True,
    } | _ONLY
