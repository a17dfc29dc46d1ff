"""Training rows of both modes: questions from a file that `data.py` wrote, and tasks of τ²-bench's training split."""

import logging
import random
from pathlib import Path
from typing import Any

from agentic.toolorchestra.preferences import with_wishes
from agentic.toolorchestra.tau2 import rows as tau2_rows
from vime.config import DatasetConfig
from vime.data.dataset import load_rows
from vime.errors import ConfigError, Problem

logger = logging.getLogger(__name__)


def rows(
    *,
    num_items: int | None,
    seed: int,
    file: str,
    tau2_domains: list[str] | None = None,
    tau2_times: int = 1,
    preferences: bool = False,
) -> list[dict[str, Any]]:
    """Return the questions in `file` and the tasks of `tau2_domains`, shuffled with `seed`, at most `num_items` in all.

    This is a generator for `data.train.generator`. Every task occurs `tau2_times` times; how many of them the originals mix with
    their questions is not published. With `preferences` each row has a wish of `preferences.py`, unless it has a vector of its
    own. Rows of ToolScale are left out, because vime does not load the databases that their tasks need. Raises ConfigError if the
    file is missing.
    """
    if not Path(file).is_file():
        remedy = (
            "there is no such file: write it with `python tools/prepare_data.py general_thought toolorchestra_train`, or by hand "
        )
        remedy += f"with `python -m agentic.toolorchestra.data generalthought.parquet --only qa --output {file}`"
        raise ConfigError([Problem(key="data.train.generator_args.file", value=file, remedy=remedy)])
    questions = load_rows(DatasetConfig(path=file))
    kept = [row for row in questions if row.get("category") == "qa"]
    if len(kept) < len(questions):
        logger.warning("%d rows of %s cannot be played and are left out", len(questions) - len(kept), file)
    tasks = tau2_rows(num_items=None, seed=seed, domains=list(tau2_domains), split="train") if tau2_domains else []
    found = [*kept, *tasks * tau2_times]
    random.Random(seed).shuffle(found)
    found = found[:num_items]
    wished = with_wishes(found, split="train", seed=seed) if preferences else found
    return [row if row.get("preference") else other for row, other in zip(found, wished, strict=True)]
