"""RULER-HQA's published questions in longer documents than the published ones.

The table of MemAgent (arXiv 2507.02259, table 2) ends at 25,600 paragraphs, the published files at 6,400.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentic.memagent.ruler.files import write_rows
from agentic.memagent.ruler.hotpotqa import HotpotQA
from vime.data.file_formats import read_rows

SEED = 0


def longer(
    sources: Mapping[str, Path], *, without: Mapping[str, Path], folder: Path, name: str, size: int, questions: str
) -> list[dict[str, Any]]:
    """The rows of the same questions over `size` paragraphs of HotpotQA's development set, for tools/datasets.yaml.

    `questions` is the name of the source with the published items. Each document is a file of its own below `folder`.
    Raises `ValueError` if a published question is not in HotpotQA's rows.
    """
    published = list(read_rows(sources[questions], key="made_from"))
    (rest,) = (path for source, path in sources.items() if source != questions)
    task = HotpotQA.read(rest).task(seed=SEED, questions=[str(row["input"]) for row in published])
    path = folder / f"{name}.jsonl"
    write_rows(path, task, size=size, num_items=len(published), own_files=True)
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
