"""The paper's training set (arXiv 2510.05592, appendix): questions of NQ and problems of DeepMath-103K in one parquet file.

The original code's data script writes it with the columns id, question, chain, result, source and extra_info.
"""

import random
from pathlib import Path
from typing import Any

from vime.errors import ConfigError, Problem

GRADERS = {"nq": "qa", "mathhard": "maths", "deepmath": "maths"}
"""Kind of grader for `vime.grading.grade.grade`, by a word in the column `source`."""


def rows(*, num_items: int | None, seed: int, file: str) -> list[dict[str, Any]]:
    """Rows for `vime.data.rows`: prompt, ground truth and grader; `num_items` of them drawn with `seed`.

    Raises ConfigError if there is no such file.
    """
    path = Path(file).expanduser()
    if not path.is_file():
        remedy = "there is no such file: write it with the original code's data script, or set VIME_AGENTFLOW_TRAIN"
        raise ConfigError([Problem(key="data.train.generator_args.file", value=file, remedy=remedy)])
    import datasets

    items = datasets.Dataset.from_parquet(str(path)).to_list()
    if num_items is not None and num_items < len(items):
        items = random.Random(seed).sample(items, num_items)
    return [_row(item) for item in items]


def _row(item: dict[str, Any]) -> dict[str, Any]:
    source = str(item["source"]).lower()
    grader = next((grader for word, grader in GRADERS.items() if word in source), "qa")
    result = item["result"]
    references = [str(one) for one in result] if isinstance(result, (list, tuple)) else [str(result)]
    return {"prompt": str(item["question"]), "reward_model": {"ground_truth": references}, "grader": grader, "source": source}
