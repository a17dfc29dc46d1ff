"""Training rows of both modes: questions from a file that `data.py` wrote, and tasks of τ²-bench's training split."""

import logging
import random
from pathlib import Path
from typing import Any

from agentic.toolorchestra.tau2 import rows as tau2_rows
from vime.config import DatasetConfig
from vime.data.rows import load_rows
from vime.errors import ConfigError, Problem

logger = logging.getLogger(__name__)


def rows(*, num_items: int | None, seed: int, file: str, tau2_domains: list[str] | None = None) -> list[dict[str, Any]]:
    """Return the questions in `file` and the tasks of `tau2_domains`, shuffled with `seed`, at most `num_items` in all.

    This is a generator for `data.train.generator`. Rows of ToolScale are left out, because vime does not load the databases
    that their tasks need. Raises ConfigError if the file is missing.
    """
    if not Path(file).is_file():
        remedy = "there is no such file: write it with `python -m agentic.toolorchestra.data generalthought.parquet --only qa "
        raise ConfigError([Problem(key="data.train.generator_args.file", value=file, remedy=f"{remedy}--output {file}`")])
    questions = load_rows(DatasetConfig(path=file))
    kept = [row for row in questions if row.get("category") == "qa"]
    if len(kept) < len(questions):
        logger.warning("%d rows of %s cannot be played and are left out", len(questions) - len(kept), file)
    tasks = tau2_rows(num_items=None, seed=seed, domains=list(tau2_domains), split="train") if tau2_domains else []
    found = [*kept, *tasks]
    random.Random(seed).shuffle(found)
    return found[:num_items]
