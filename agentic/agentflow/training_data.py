"""The paper's training set (arXiv 2510.05592, appendix): questions of NQ and problems of DeepMath-103K in one shuffled file.

`tools/prepare_data.py agentflow_train` makes it with the columns question, result (a list) and source. The parquet file of the
original code's data script is read as well, whose `result` is a text with the answers of NQ joined by "; ".
"""

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vime.config import DatasetConfig
from vime.data.dataset import load_rows
from vime.errors import ConfigError, Problem

GRADERS = {"nq": "qa", "mathhard": "maths", "deepmath": "maths"}
"""Kind of grader for `vime.grading.grade.grade`, by a word in the column `source`."""
NQ, JOINED = "nq", "; "
SEED = 42
"""Seed with which the original shuffles."""


def combined(sources: Mapping[str, Path], *, without: Mapping[str, Path], folder: Path, name: str) -> list[dict[str, Any]]:
    """The rows of both prepared sets in a random order, for tools/datasets.yaml.

    As in the original, a question of NQ ends with a question mark. The order is another one, because its shuffle is not ours.
    """
    rows = [
        _combined_row(row, source=set_name)
        for set_name, path in sources.items()
        for row in load_rows(DatasetConfig(path=str(path)))
    ]
    random.Random(SEED).shuffle(rows)
    return rows


def _combined_row(row: dict[str, Any], *, source: str) -> dict[str, Any]:
    question = str(row["question"]).strip()
    if source.startswith(NQ):
        return {"question": question if question.endswith("?") else f"{question}?", "result": list(row["answers"]), "source": NQ}
    return {"question": question, "result": [row["answer"]], "source": "mathhard"}


def rows(*, num_items: int | None, seed: int, file: str) -> list[dict[str, Any]]:
    """Rows for `vime.data.dataset`: prompt, ground truth and grader; `num_items` of them drawn with `seed`.

    Raises ConfigError if there is no such file.
    """
    path = Path(file).expanduser()
    if not path.is_file():
        remedy = (
            "there is no such file: write it with `python tools/prepare_data.py nq_train deepmath_103k agentflow_train`, or name "
        )
        remedy += "its folder in VIME_AGENTFLOW_DATA"
        raise ConfigError([Problem(key="data.train.generator_args.file", value=file, remedy=remedy)])
    items = load_rows(DatasetConfig(path=str(path)))
    if num_items is not None and num_items < len(items):
        items = random.Random(seed).sample(items, num_items)
    return [_row(item) for item in items]


def _row(item: dict[str, Any]) -> dict[str, Any]:
    source = str(item["source"]).lower()
    grader = next((grader for word, grader in GRADERS.items() if word in source), "qa")
    result = item["result"]
    if isinstance(result, str) and NQ in source:
        result = result.split(JOINED)
    return {"prompt": str(item["question"]), "reward_model": {"ground_truth": result}, "grader": grader, "source": source}
