"""Loads the tokenizer of a checkpoint, without PyTorch where its class is known.

`transformers.AutoTokenizer` imports PyTorch and much of transformers before it loads anything. This would be most of the time and
memory of a rollout worker's start.
"""

import json
from pathlib import Path
from typing import Any

DIRECT = {"Qwen2Tokenizer": "Qwen2Tokenizer", "Qwen2TokenizerFast": "Qwen2Tokenizer"}
"""The names of classes in `tokenizer_config.json`, and those under which transformers has them."""


def load_tokenizer(checkpoint: str | Path) -> Any:
    """Returns the tokenizer of a checkpoint, given as a folder or a Hugging Face id: the one that `AutoTokenizer` returns."""
    import transformers

    found = _configuration(checkpoint)
    name = DIRECT.get(found.get("tokenizer_class", "")) if "auto_map" not in found else None
    return getattr(transformers, name or "AutoTokenizer").from_pretrained(checkpoint)


def _configuration(checkpoint: str | Path) -> dict[str, Any]:
    """The content of `tokenizer_config.json`; empty if there is none."""
    from transformers.utils.hub import cached_file

    missing_is_fine = {f"_raise_exceptions_for_{what}": False for what in ("gated_repo", "missing_entries", "connection_errors")}
    file = cached_file(str(checkpoint), "tokenizer_config.json", **missing_is_fine)
    return json.loads(Path(file).read_text(encoding="utf-8")) if file is not None else {}
