"""Writes the text model of a checkpoint that also sees images as a checkpoint of its own, tensor by tensor."""

import json
import shutil
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file

from vime.config import Family
from vime.errors import CheckpointError
from vime.model.families import family_of

WITHIN, ALONE = "model.language_model.", "model."
HEAD = "lm_head."
OF_TOKENIZER = ("tokenizer*.json", "vocab.json", "merges.txt", "special_tokens_map.json", "added_tokens.json", "chat_template.*")
OF_TOKENIZER += ("generation_config.json",)


def write_text_model(source: Path, target: Path) -> None:
    """Writes configuration, tokenizer and weights. Raises `CheckpointError` for a checkpoint without a text model inside."""
    raw = json.loads((source / "config.json").read_text())
    text: dict[str, Any] = raw.get("text_config") or {}
    kind = text.get("model_type")
    if kind not in [family.value for family in Family]:
        families = ", ".join(family.value for family in Family)
        raise CheckpointError(f"{source} has no text_config of a family that is trained here ({families}), but of {kind}")
    target.mkdir(parents=True)
    parts = {path.name: _write_part(path, target) for path in sorted(source.glob("*.safetensors"))}
    weight_map = {name: part for part, names in parts.items() for name in names}
    if not weight_map:
        raise CheckpointError(f"{source} holds no tensors of a text model ({WITHIN}…) in safetensors files")
    if list(parts) != ["model.safetensors"]:
        total = sum(size for names in parts.values() for size in names.values())
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (target / "model.safetensors.index.json").write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
    for pattern in OF_TOKENIZER:
        for path in source.glob(pattern):
            shutil.copyfile(path, target / path.name)
    tied = text.get("tie_word_embeddings", raw.get("tie_word_embeddings", False))
    config = text | {
        "architectures": [family_of(kind).config_class.replace("TextConfig", "ForCausalLM")],
        "tie_word_embeddings": tied,
    }
    for name in ("dtype", "torch_dtype"):
        if name in raw:
            config.setdefault(name, raw[name])
    (target / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def _write_part(path: Path, target: Path) -> dict[str, int]:
    """Writes the text model's tensors of one file, and returns their sizes in bytes by name; none if it has none."""
    tensors = {}
    with safe_open(path, framework="pt") as file:
        for name in list(file.keys()):
            if name.startswith(WITHIN):
                tensors[ALONE + name.removeprefix(WITHIN)] = file.get_tensor(name)
            elif name.startswith(HEAD):
                tensors[name] = file.get_tensor(name)
    if tensors:
        save_file(tensors, target / path.name, metadata={"format": "pt"})
    return {name: tensor.nbytes for name, tensor in tensors.items()}
