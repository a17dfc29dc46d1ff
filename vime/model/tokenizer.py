"""Checks that the tokenizer of a checkpoint folder is that of its model, from the files alone and without transformers."""

import json
from pathlib import Path
from typing import Any

from vime.errors import Problem


def tokenizer_problems(folder: Path, *, key: str, value: object) -> list[Problem]:
    """Token ids that the model has not, and special tokens with other ids than the model was trained with.

    Only what `tokenizer.json`, or `vocab.json`, and the configurations say is compared; absent fields are not reported.
    """
    try:
        ids = _token_ids(folder)
        model = _read(folder / "config.json")
        tokenizer, generation = _read(folder / "tokenizer_config.json"), _read(folder / "generation_config.json")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        remedy = f"its tokenizer files cannot be read ({type(error).__name__}: {error}): fetch the checkpoint again"
        return [Problem(key=key, value=value, remedy=remedy)]
    if not ids:
        return []
    problems = []
    token, largest = max(ids.items(), key=lambda pair: pair[1])
    size = model.get("vocab_size")
    if size is not None and largest >= size:
        remedy = f"its tokenizer has ids up to {largest} ({token!r}), its model only {size} tokens: use the model's own tokenizer"
        problems.append(Problem(key=key, value=value, remedy=remedy))
    for name in ("bos", "eos"):
        text = tokenizer.get(f"{name}_token")
        text = text.get("content") if isinstance(text, dict) else text
        known = _as_list(model.get(f"{name}_token_id")) + _as_list(generation.get(f"{name}_token_id"))
        if text in ids and known and ids[text] not in known:
            remedy = (
                f"{name}_token of its tokenizer is {text!r} with id {ids[text]}, its config.json says {name}_token_id="
                f"{', '.join(map(str, dict.fromkeys(known)))}: use the model's own tokenizer, or correct the config"
            )
            problems.append(Problem(key=key, value=value, remedy=remedy))
    return problems


def _token_ids(folder: Path) -> dict[str, int]:
    """Ids by token; empty for kinds of tokenizers that are not plain JSON."""
    if (folder / "tokenizer.json").exists():
        raw = _read(folder / "tokenizer.json")
        vocab = raw["model"]["vocab"]
        pairs = vocab if isinstance(vocab, dict) else {token: index for index, (token, _) in enumerate(vocab)}
        return pairs | {entry["content"]: entry["id"] for entry in raw.get("added_tokens", [])}
    return _read(folder / "vocab.json") | _read(folder / "added_tokens.json")


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _as_list(ids: int | list[int] | None) -> list[int]:
    return ids if isinstance(ids, list) else [] if ids is None else [ids]
