"""Reads the rows of a dataset: a file (`vime.data.file_formats`), a Hugging Face dataset, or a generator function.

A row becomes a `Prompt`. The question is its field `prompt` (messages or a text), `input`, `question`, `problem` or
`problem_statement`; `prompt: []` says that there is none, because an environment speaks first. Its reference answers are those
that `vime.data.answers` finds, and all other fields are metadata. A document too long for its row, or a repository, may be in a
file of its own, which `context_file` or `archive` names relative to the rows' file.
"""

import logging
import re
from collections.abc import Iterable
from itertools import islice
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from vime.config import DatasetConfig
from vime.data.answers import ANSWER_REMEDY, NoAnswerError, answers_of, given_answers
from vime.data.file_formats import kind_of, read_rows
from vime.errors import ConfigError, Problem, describe
from vime.hooks import load_named, naming
from vime.types import Prompt

logger = logging.getLogger(__name__)

_QUESTION_FIELDS = ("prompt", "input", "question", "problem", "problem_statement")
HUB_FILE = "hf://datasets/"
CONTEXT_FILE = "context_file"
FILES = {CONTEXT_FILE: "document", "archive": "repository"}
"""Fields that name a file, with the kind of its content."""
NUM_NAMED_ROWS = 3
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
"""Names of data sets, after which files are named."""
_QUESTION_REMEDY = "name the column of the question `question`, or remove such rows"


def load_rows(dataset: DatasetConfig, *, key: str = "data.train") -> list[dict[str, Any]]:
    """Reads or generates the rows of a dataset, at most `num_items` of them.

    Raises `ConfigError`, for a setting below `key`, if there are none or a file cannot be read as rows; `HookError` for any
    error of a generator.
    """
    if dataset.generator is not None:
        generator = load_named(f"{key}.generator", dataset.generator)
        made = generator(num_items=dataset.num_items, seed=dataset.seed, **dataset.generator_args)
        with naming(f"{key}.generator", dataset.generator):  # one that yields its rows makes them here
            made = list(islice(made, dataset.num_items))
        rows = [_generated(row, number, dataset, key) for number, row in enumerate(made)]
    else:
        assert dataset.path is not None, f"data set {dataset.name!r} has neither path nor generator"
        rows = _with_whole_paths(list(islice(_read(dataset, dataset.path, key), dataset.num_items)), dataset, key)
    if not rows:
        raise ConfigError([_problem(dataset, key, "has no rows: use another file, data set or generator")])
    return rows


def check_rows(rows: list[dict[str, Any]], dataset: DatasetConfig, *, key: str = "data.train") -> None:
    """Raises `ConfigError` if rows have no usable question or answer; it names the first of them and how many there are."""
    checks = (("question", _question_problem, _QUESTION_REMEDY), ("answer", _answer_problem, ANSWER_REMEDY))
    problems = []
    for part, problem_of, remedy in checks:
        wrong = [(number, problem) for number, row in enumerate(rows) if (problem := problem_of(row))]
        if wrong:
            named = "; ".join(f"row {number} {problem}" for number, problem in wrong[:NUM_NAMED_ROWS])
            which = f"{len(wrong)} of {len(rows)} rows, counted from 0, have no usable {part}: {named}"
            problems.append(_problem(dataset, key, f"{which}; {remedy}"))
    if problems:
        raise ConfigError(problems)
    if num_empty := sum(bool(given_answers(row)) and not answers_of(row) for row in rows):
        logger.warning("%d of %d rows of %s have an empty answer, which no reply can match", num_empty, len(rows), dataset.name)


def _problem(dataset: DatasetConfig, key: str, remedy: str) -> Problem:
    field, value = ("generator", dataset.generator) if dataset.generator is not None else ("path", dataset.path)
    return Problem(key=f"{key}.{field}", value=value, remedy=remedy)


def _generated(row: Any, number: int, dataset: DatasetConfig, key: str) -> dict[str, Any]:
    """A generator's row with lists and Python's numbers in place of numpy's, which pandas puts there."""
    if not isinstance(row, dict):
        raise ConfigError(
            [_problem(dataset, key, f"row {number} is no dictionary but a {type(row).__name__}: return a list of them")]
        )
    return _without_numpy(row)


def _without_numpy(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, dict):
        return {name: _without_numpy(item) for name, item in value.items()}
    return [_without_numpy(item) for item in value] if isinstance(value, list) else value


def _read(dataset: DatasetConfig, path: str, key: str) -> Iterable[dict[str, Any]]:
    file = _download(path, f"{key}.path") if path.startswith(HUB_FILE) else Path(path).expanduser()
    if path.startswith(HUB_FILE) or kind_of(path) or (file.exists() and not file.is_dir()):
        return read_rows(file, key=f"{key}.path")
    import datasets
    from datasets.exceptions import DatasetsError

    try:
        return datasets.load_dataset(path, split=dataset.split).to_list()
    except (OSError, ValueError, RuntimeError, ImportError, DatasetsError) as error:
        reason = (describe(error).splitlines() or [""])[0]  # no such data set, split or network; files that it cannot read
        if file.is_dir():
            remedy = f"is a folder that cannot be loaded as a data set ({reason}): use a file inside"
        else:
            remedy = f"cannot be loaded from Hugging Face ({reason}): use another id, or a local file"
        raise ConfigError([Problem(key=f"{key}.path", value=path, remedy=remedy)]) from error


def _with_whole_paths(rows: list[dict[str, Any]], dataset: DatasetConfig, key: str) -> list[dict[str, Any]]:
    """The rows with absolute paths of files. Raises `ConfigError` for a path that is not a file below the rows' folder."""
    for field, content in FILES.items():
        if not any(row.get(field) for row in rows):
            continue
        folder = Path(dataset.path or "").expanduser().parent
        wrong = [(number, reason) for number, row in enumerate(rows) if (reason := _file_problem(row.get(field), folder))]
        if wrong:
            named = "; ".join(f"row {number}: {reason}" for number, reason in wrong[:NUM_NAMED_ROWS])
            which = f"{field} of {len(wrong)} of {len(rows)} rows, counted from 0"
            raise ConfigError([_problem(dataset, key, f"{which}, names no {content} of this data set: {named}")])
        rows = [{**row, field: str(folder / row[field])} if row.get(field) else row for row in rows]
    return rows


def _file_problem(name: Any, folder: Path) -> str:
    """The reason why a row's file is refused, "" if it is not; rows come from others and must not name any file of this user."""
    if not name:
        return ""
    if not isinstance(name, str):
        return f"a {type(name).__name__} is no path"
    path = PurePath(name)
    if path.is_absolute() or ".." in path.parts:
        return f"{name!r} lies outside {folder}; use a path below it"
    return "" if (folder / path).is_file() else f"{folder / path} is not there"


def _download(path: str, key: str) -> Path:
    """Downloads one file of a data set on the Hub: `hf://datasets/OWNER/NAME@REVISION/FILE`."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError

    owner, name, file = path.removeprefix(HUB_FILE).split("/", 2)
    name, _, revision = name.partition("@")
    try:
        return Path(hf_hub_download(f"{owner}/{name}", file, repo_type="dataset", revision=revision or None))
    except (HfHubHTTPError, OSError, ValueError) as error:
        remedy = f"cannot be downloaded ({type(error).__name__}): check its name and the network, or use the path of a local copy"
        raise ConfigError([Problem(key=key, value=path, remedy=remedy)]) from error


def to_prompt(row: dict[str, Any], *, index: int, row_number: int, dataset: str) -> Prompt:
    """Converts a row to a prompt; `index` is its place in the order of training, `row_number` its place in the data set, from 0.

    Raises `ConfigError` if the row's question is missing, or is neither a text nor a list of messages with role and content, or
    if its answer is neither text nor number.
    """
    for problem, remedy in ((_question_problem(row), _QUESTION_REMEDY), (_answer_problem(row), ANSWER_REMEDY)):
        if problem:
            raise ConfigError([Problem(key=f"data.{dataset}", value=sorted(row), remedy=f"row {row_number} {problem}; {remedy}")])
    question = _question(row)
    messages = [{"role": "user", "content": question}] if isinstance(question, str) else [dict(m) for m in question]
    metadata = {name: value for name, value in row.items() if name not in ("prompt", "question")}
    return Prompt(
        index=index, row=row_number, messages=messages, ground_truth=answers_of(row), metadata=metadata, dataset=dataset
    )


def _question(row: dict[str, Any]) -> Any:
    """The row's text or messages, [] for a row that says that it has none, None for one that does not say so."""
    return next((row[name] for name in _QUESTION_FIELDS if row.get(name)), [] if row.get("prompt") == [] else None)


def _question_problem(row: dict[str, Any]) -> str:
    """The reason why the row's question is unusable, "" if it is usable."""
    question = _question(row)
    if isinstance(question, str):
        return ""
    if question is None:
        return f"has none of the fields {', '.join(_QUESTION_FIELDS)}, but {', '.join(map(str, row)) or 'nothing'}"
    if not isinstance(question, (list, tuple)):
        return f"has a {type(question).__name__} for its question, neither a text nor messages"
    if not all(isinstance(message, dict) and _can_be_said(message) for message in question):
        return "has a message without role or content"
    return ""


def _answer_problem(row: dict[str, Any]) -> str:
    """The reason why the row's answer is unusable, "" if it is usable or there is none."""
    try:
        answers_of(row)
    except NoAnswerError as error:
        return str(error)
    return ""


def _can_be_said(message: dict[str, Any]) -> bool:
    return bool(message.get("role")) and (message.get("content") is not None or bool(message.get("tool_calls")))
