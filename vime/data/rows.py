"""Reads the rows of a dataset: a file (jsonl, json, parquet), a Hugging Face dataset, or a generator function.

A row becomes a `Prompt`. Question, answer and everything else are found under the names of the public sets: `prompt`
(messages or text), `input` or `question`; `reward_model.ground_truth`, `answers` or `answer`; the rest is metadata. A text that
is too long for its row stands in a file of its own: `context_file`, relative to the rows' file.
"""

import json
from pathlib import Path
from typing import Any

from vime.config import DatasetConfig
from vime.errors import ConfigError, Problem
from vime.hooks import load_hook
from vime.types import Prompt

_QUESTION_FIELDS = ("prompt", "input", "question", "problem")
HUB_FILE = "hf://datasets/"
CONTEXT_FILE = "context_file"
_ANSWER_FIELDS = ("answers", "answer", "ground_truth", "label")


def load_rows(dataset: DatasetConfig) -> list[dict[str, Any]]:
    """All rows of a dataset, at most `num_items` of them.

    Raises `ConfigError` if there are none.
    """
    if dataset.generator is not None:
        rows = load_hook(dataset.generator)(num_items=dataset.num_items, seed=dataset.seed, **dataset.generator_args)
    else:
        assert dataset.path is not None, f"data set {dataset.name!r} has neither path nor generator"
        rows = _with_whole_paths(_read(dataset.path, dataset.split), Path(dataset.path).expanduser().parent)
    rows = rows[: dataset.num_items]
    if not rows:
        key = f"data.{dataset.name}"
        raise ConfigError([Problem(key=key, value=dataset.path or dataset.generator, remedy="has no rows; give another source")])
    return rows


def _read(path: str, split: str) -> list[dict[str, Any]]:
    file = _download(path) if path.startswith(HUB_FILE) else Path(path).expanduser()
    if file.suffix == ".jsonl" and file.exists():
        return [json.loads(line) for line in file.read_text().splitlines() if line.strip()]
    if file.suffix == ".json" and file.exists():
        return json.loads(file.read_text())
    import datasets

    if file.suffix == ".parquet" and file.exists():
        return datasets.Dataset.from_parquet(str(file)).to_list()
    return datasets.load_dataset(path, split=split).to_list()


def _with_whole_paths(rows: list[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    return [{**row, CONTEXT_FILE: str(folder / row[CONTEXT_FILE])} if row.get(CONTEXT_FILE) else row for row in rows]


def _download(path: str) -> Path:
    """One file of a data set on the Hub: `hf://datasets/OWNER/NAME@REVISION/FILE`."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError

    owner, name, file = path.removeprefix(HUB_FILE).split("/", 2)
    name, _, revision = name.partition("@")
    try:
        return Path(hf_hub_download(f"{owner}/{name}", file, repo_type="dataset", revision=revision or None))
    except (HfHubHTTPError, OSError) as error:
        remedy = f"cannot be downloaded ({type(error).__name__}); check the network, or give the path of a local copy"
        raise ConfigError([Problem(key="data.path", value=path, remedy=remedy)]) from error


def to_prompt(row: dict[str, Any], *, index: int, row_number: int, dataset: str) -> Prompt:
    """The prompt of a row.

    Raises `ConfigError` if the row has no question.
    """
    question = next((row[name] for name in _QUESTION_FIELDS if row.get(name)), None)
    if question is None:
        remedy = f"row {row_number} has none of the fields {', '.join(_QUESTION_FIELDS)}; rename the column of the question"
        raise ConfigError([Problem(key=f"data.{dataset}", value=sorted(row), remedy=remedy)])
    messages = [{"role": "user", "content": question}] if isinstance(question, str) else [dict(m) for m in question]
    answer = (row.get("reward_model") or {}).get("ground_truth")
    if answer is None:
        answer = next((row[name] for name in _ANSWER_FIELDS if row.get(name) is not None), [])
    ground_truth = [str(a) for a in answer] if isinstance(answer, (list, tuple)) else [str(answer)]
    metadata = {name: value for name, value in row.items() if name not in (*_QUESTION_FIELDS, "reward_model")}
    return Prompt(index=index, row=row_number, messages=messages, ground_truth=ground_truth, metadata=metadata, dataset=dataset)
