"""A corpus of made-up words, in which each passage has a number of its own."""

import json
import random
from pathlib import Path

import pytest


def write_corpus(path: Path, num_passages: int, *, seed: int = 0) -> Path:
    """Passages of forty made-up words, each with its number in the title."""
    rng = random.Random(seed)
    words = ["".join(rng.choice("bdfgklmnprst") + rng.choice("aeiou") for _ in range(rng.randint(2, 4))) for _ in range(2000)]
    with path.open("w") as file:
        for number in range(num_passages):
            text = " ".join(rng.choice(words) for _ in range(40))
            file.write(json.dumps({"id": f"p{number}", "title": f"record {number}", "text": text}) + "\n")
    return path


@pytest.fixture(scope="session")
def corpus_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 passages."""
    return write_corpus(tmp_path_factory.mktemp("corpus") / "passages.jsonl", 400)
