"""`manifest.json` of a trainer checkpoint: what was saved, under which layout, and size and checksum of every file.

It is written last, so a folder with a manifest is complete. Nothing here needs Megatron.
"""

import hashlib
import json
import os
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from vime.config import CriticPlace, LoraConfig, LoraTarget, TrainerConfig
from vime.errors import CheckpointError
from vime.model.adapter_folder import base_digest
from vime.model.architecture import Architecture

FILE = "manifest.json"
FORMAT = 2
LORA, CRITIC = "lora", "critic"
ADVICE = "move this checkpoint away, and resume=true goes on from the one before"


def describe_run(
    architecture: Architecture, trainer: TrainerConfig, *, base: Path, critic: CriticPlace | None = None
) -> dict[str, Any]:
    """A checkpoint's description of the run that saved it; all but the layout must agree with the run that loads it.

    `base` is the folder of the model that adapters, or a critic's frozen attention, belong to; `critic` is given where the saved
    weights have a value head.
    """
    is_frozen = critic is CriticPlace.frozen_attention
    described = critic and {"place": critic.value} | ({"base": base_digest(base)} if is_frozen else {})
    sizes = [field.name for field in fields(trainer) if field.name.endswith("_parallel_size")]
    return {
        "format": FORMAT,
        "architecture": asdict(architecture) | {"family": architecture.family.value},
        "precision": trainer.precision.value,
        "layout": {name: getattr(trainer, name) for name in sizes},
        LORA: _describe_adapters(trainer.lora, base) if trainer.lora.rank else None,
        CRITIC: described,
    }


def _describe_adapters(lora: LoraConfig, base: Path) -> dict[str, Any]:
    targets = sorted(target.value for target in lora.targets)
    return {"rank": lora.rank, "alpha": lora.alpha, "targets": targets, "base": base_digest(base)}


def saved_adapters(saved: dict[str, Any]) -> LoraConfig:
    """The settings of the adapters of a checkpoint; rank 0 if it holds whole weights."""
    described = saved.get(LORA)
    if not described:
        return LoraConfig()
    targets = [LoraTarget(target) for target in described["targets"]]
    return LoraConfig(rank=described["rank"], alpha=described["alpha"], targets=targets)


def has_value_head(saved: dict[str, Any]) -> bool:
    """True for the checkpoint of a policy that has a critic's head beside its own (`algorithm.critic.place=trunk`)."""
    return (saved.get(CRITIC) or {}).get("place") == CriticPlace.trunk.value


def read(folder: Path) -> dict[str, Any]:
    """The manifest of a checkpoint. Raises `CheckpointError` if there is none that can be read."""
    try:
        manifest = json.loads((folder / FILE).read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder} is not a complete trainer checkpoint ({error}): {ADVICE}") from error
    if manifest.get("format") != FORMAT:
        raise CheckpointError(f"{folder} has format {manifest.get('format')}, this version reads {FORMAT}")
    return manifest


def write(folder: Path, run: dict[str, Any], files: dict[str, Any]) -> None:
    """Writes the manifest: `run` of `describe_run`, `files` of `describe_file` by name."""
    with (folder / FILE).open("w") as file:
        json.dump(run | {"files": dict(sorted(files.items()))}, file, indent=2)
        file.flush()
        os.fsync(file.fileno())


def check_same_model(folder: Path, saved: dict[str, Any], run: dict[str, Any]) -> None:
    """Raises `CheckpointError`, naming every field in which the checkpoint is of another model or precision than the run."""
    saved_fields, own_fields = (_compared(description) for description in (saved, run))
    differing = [
        f"{name} is {saved_fields.get(name)} there and {own_fields.get(name)} here"
        for name in sorted(saved_fields.keys() | own_fields.keys())
        # an older checkpoint lacks the fields of families that came later
        if (saved_fields.get(name) or None) != (own_fields.get(name) or None)
    ]
    if differing:
        remedy = "resume with the model and precision of the saved run, or start a new run"
        raise CheckpointError(f"{folder} was saved by another model: {'; '.join(differing)}; {remedy}")


def _compared(description: dict[str, Any]) -> dict[str, Any]:
    """The fields in which a checkpoint and the run that loads it must agree."""
    parts = ((kind, description.get(kind) or {}) for kind in (LORA, CRITIC))
    own = {f"{kind}.{name}": value for kind, part in parts for name, value in part.items()}
    return description["architecture"] | {"precision": description["precision"]} | own


def describe_file(path: Path) -> dict[str, Any]:
    """`{"bytes": …, "blake2b": …}` of a file."""
    return {"bytes": path.stat().st_size, "blake2b": _checksum(path)}


def damage(folder: Path, files: dict[str, Any]) -> list[str]:
    """The damage to these files of a manifest, one line each; an empty list if they are as they were written."""
    found = []
    for name, entry in files.items():
        path = folder / name
        if not path.exists():
            found.append(f"{path} is missing")
        elif path.stat().st_size != entry["bytes"]:
            found.append(f"{path} has {path.stat().st_size} bytes instead of {entry['bytes']}")
        elif _checksum(path) != entry["blake2b"]:
            found.append(f"{path} is damaged: its checksum is not the one that was written")
    return found


def _checksum(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(2**24):
            digest.update(block)
    return digest.hexdigest()
