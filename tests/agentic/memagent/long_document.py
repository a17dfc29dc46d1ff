"""Builds a document of 3.5 million tokens and reads it in chunks of 5,000; prints its length and the largest memory as JSON.

    python tests/agentic/memagent/long_document.py FOLDER

A program of its own, because the memory of a process can only be asked for as a whole; the kernel's `ru_maxrss` would also count
that of the process which has started it.
"""

import json
import re
import sys
from pathlib import Path

import agentic.memagent
from agentic.memagent.chunks import ChunkAt, split_document
from agentic.memagent.ruler.files import write_rows
from agentic.memagent.ruler.hotpotqa import HotpotQA
from vime.config import DatasetConfig
from vime.data.dataset import load_rows
from vime.model.load_tokenizer import load_tokenizer

NUM_QUESTIONS, NUM_DOCUMENTS = 2600, 25_600


def main(folder: Path) -> None:
    """Builds, reads, prints."""
    rows = [
        {
            "question": f"Question {number}?",
            "answer": "a",
            "supporting_facts": [[f"Title {number}.0", 0]],
            "context": [
                [f"Title {number}.{i}", [f"Some{number + i} text about many other small things. " * 4]] for i in range(10)
            ],
        }
        for number in range(NUM_QUESTIONS)
    ]
    path = folder / "long.jsonl"
    write_rows(path, HotpotQA(rows).task(seed=0), size=NUM_DOCUMENTS, num_items=1, own_files=True)
    row = load_rows(DatasetConfig(path=str(path)))[0]
    tokenizer = load_tokenizer(Path(agentic.memagent.__file__).parent / "tiny" / "actor")
    text = Path(row["context_file"]).read_text(encoding="utf-8")
    chunks = split_document(text, tokenizer=tokenizer, chunk_tokens=5000, max_chunks=10_000, chunk_at=ChunkAt.token)
    assert "".join(chunks) == text
    last = len(tokenizer.encode(chunks[-1], add_special_tokens=False))
    [peak] = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    found = {"num_tokens": 5000 * (len(chunks) - 1) + last, "num_chunks": len(chunks), "peak_bytes": int(peak) * 1024}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
