"""The items of an evaluation, and the settings that an item's score depends on.

Both are written beside the items, so that an evaluation is resumed only under the settings it was begun with.
"""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from vime.config import DatasetConfig, RunConfig
from vime.data.dataset import check_rows, load_rows, to_prompt
from vime.errors import ConfigError, Problem, written
from vime.files.jsonl import write_text
from vime.files.provenance import plain, without_secrets
from vime.types import Prompt

PROTOCOL = "protocol.yaml"
TRAINING_ONLY = ("credit", "group_reward", "eval_log", "name")
"""Settings of a method that change no score."""
DIGEST_CHARACTERS = 16


def load_prompts(config: RunConfig) -> dict[str, list[Prompt]]:
    """The items of every evaluation set, by its name."""
    return {dataset.name: _prompts(dataset, f"data.evaluation.{i}") for i, dataset in enumerate(config.data.evaluation)}


def protocol_of(config: RunConfig, prompts: dict[str, list[Prompt]]) -> dict[str, Any]:
    """The settings and items that an evaluation must share with its earlier part when it is resumed, as plain data."""
    method = {key: value for key, value in asdict(config.method).items() if key not in TRAINING_ONLY}
    served = {
        name: {"checkpoint": model.checkpoint, "served_name": model.served_name, "max_model_len": model.max_model_len}
        | ({} if model.trained else {"sampling": asdict(model.sampling), "chat_template_args": model.chat_template_args})
        | ({"body": model.chat.body} if model.chat.body else {})
        | ({"adapter": model.adapter} if model.adapter else {})
        for name, model in config.serving.models.items()
    }
    return without_secrets(
        plain(
            {
                "checkpoint": config.model.checkpoint,
                "chat_template_args": config.model.chat_template_args,
                "top_p": config.evaluation.top_p,
                "method": method,
                "gateway": asdict(config.gateway),
                "models": served,
                "datasets": {
                    name: {"num_items": len(items), "digest": digest(*[item_digest(prompt) for prompt in items])}
                    for name, items in prompts.items()
                },
            }
        )
    )


def begin(folder: Path, protocol: dict[str, Any]) -> None:
    """Writes the protocol into an evaluation's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / PROTOCOL, yaml.safe_dump(protocol, sort_keys=False, allow_unicode=True))


def check_same(folder: Path, protocol: dict[str, Any]) -> None:
    """Raises `ConfigError`, naming each setting that differs from those the items in `folder` were made with."""
    earlier = read_protocol(folder)
    if earlier is None or not any(folder.glob("*.jsonl")):
        return
    before, now = _flatten(earlier), _flatten(protocol)
    problems = [
        Problem(
            key=key,
            value=now.get(key, "absent"),
            remedy=f"the items in {folder} were scored with {written(before.get(key, 'no such setting'))}: use that again, "
            "or remove resume=true",
        )
        for key in dict.fromkeys([*before, *now])
        if before.get(key) != now.get(key)
    ]
    if problems:
        raise ConfigError(problems)


def read_protocol(folder: Path) -> dict[str, Any] | None:
    """Reads the protocol of the evaluation in `folder`; None if there is none."""
    file = folder / PROTOCOL
    return yaml.safe_load(file.read_text(encoding="utf-8")) if file.exists() else None


def item_digest(prompt: Prompt) -> str:
    """Identifies an item by its question, its answer and its metadata."""
    return digest(prompt.messages, prompt.ground_truth, prompt.metadata)


def digest(*parts: Any) -> str:
    """A short SHA-256 of plain data."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST_CHARACTERS]


def _prompts(dataset: DatasetConfig, key: str) -> list[Prompt]:
    rows = load_rows(dataset, key=key)
    check_rows(rows, dataset, key=key)
    return [to_prompt(row, index=i, row_number=i, dataset=dataset.name) for i, row in enumerate(rows)]


def _flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(value, dict) and value:
        return {key: leaf for name, inner in value.items() for key, leaf in _flatten(inner, f"{prefix}{name}.").items()}
    return {prefix.rstrip("."): value}
