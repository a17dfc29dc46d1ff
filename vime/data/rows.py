"""Reads the rows of a dataset: a file (jsonl, json, parquet), a Hugging Face dataset, or a generator function.

A row becomes a `Prompt`. The question is its field `prompt` (messages or a text), `input`, `question`, `problem` or
`problem_statement`, the answer its field `reward_model.ground_truth`, `answers`, `answer`, `ground_truth` or `label`, and all
other fields are metadata. A document too long for its row, or a repository, may be in a file of its own, which `context_file`
or `archive` names relative to the rows' file.
"""

import json
from pathlib import Path, PurePath
from typing import Any, NoReturn

from vime.config import DatasetConfig
from vime.errors import ConfigError, Problem, describe
from vime.hooks import load_hook
from vime.types import Prompt

_QUESTION_FIELDS = ("prompt", "input", "question", "problem", "problem_statement")
HUB_FILE = "hf://datasets/"
CONTEXT_FILE = "context_file"
FILES = {CONTEXT_FILE: "document", "archive": "repository"}
"""Fields that name a file, with what is in it."""
NUM_NAMED_ROWS = 3
_ANSWER_FIELDS = ("answers", "answer", "ground_truth", "label")
_REMEDY = "name the column of the question `question`, or remove such rows"


def load_rows(dataset: DatasetConfig, *, key: str = "data.train") -> list[dict[str, Any]]:
    """Reads or generates the rows of a dataset, at most `num_items` of them.

    Raises `ConfigError`, for a setting below `key`, if there are none or a file cannot be read as rows.
    """
    if dataset.generator is not None:
        rows = load_hook(dataset.generator)(num_items=dataset.num_items, seed=dataset.seed, **dataset.generator_args)
    else:
        assert dataset.path is not None, f"data set {dataset.name!r} has neither path nor generator"
        rows = _with_whole_paths(_read(dataset, dataset.path, key), dataset, key)
    rows = rows[: dataset.num_items]
    if not rows:
        raise ConfigError([_problem(dataset, key, "has no rows: use another file, data set or generator")])
    return rows


def check_rows(rows: list[dict[str, Any]], dataset: DatasetConfig, *, key: str = "data.train") -> None:
    """Raises `ConfigError` if rows have no usable question; it names the first of them and how many there are."""
    wrong = [(number, problem) for number, row in enumerate(rows) if (problem := _question_problem(row))]
    if wrong:
        named = "; ".join(f"row {number} {problem}" for number, problem in wrong[:NUM_NAMED_ROWS])
        remedy = f"{len(wrong)} of {len(rows)} rows, counted from 0, have no usable question: {named}; {_REMEDY}"
        raise ConfigError([_problem(dataset, key, remedy)])


def _problem(dataset: DatasetConfig, key: str, remedy: str) -> Problem:
    field, value = ("generator", dataset.generator) if dataset.generator is not None else ("path", dataset.path)
    return Problem(key=f"{key}.{field}", value=value, remedy=remedy)


def read_json(file: Path, *, key: str) -> list[dict[str, Any]]:
    """The objects of a .json list or a .jsonl file, whose lines end at line feeds and carriage returns only.

    Raises `ConfigError` for `key`, naming the file and the line or entry, if it holds anything else.
    """

    def refuse(where: str, reason: str) -> NoReturn:
        raise ConfigError([Problem(key=key, value=str(file), remedy=f"{where} of {file.name} {reason}")])

    def parse(text: bytes, first_line: int) -> Any:
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            refuse(f"line {first_line + error.lineno - 1}", f"is no JSON: {error.msg} at column {error.colno}")
        except UnicodeDecodeError as error:
            line = first_line + text[: error.start].count(b"\n")
            refuse(f"line {line}", f"is no UTF-8: {error.reason}")

    data = file.read_bytes()
    if file.suffix == ".jsonl":
        unit, lines = "line", enumerate(data.splitlines(), start=1)
        rows = [(number, parse(line, number)) for number, line in lines if line.strip()]
    else:
        unit, found = "entry", parse(data, 1)
        if not isinstance(found, list):
            refuse("line 1", f"begins no list of objects but a {type(found).__name__}")
        rows = list(enumerate(found, start=1))
    for number, row in rows:
        if not isinstance(row, dict):
            refuse(f"{unit} {number}", f"is no object but a {type(row).__name__}")
    return [row for _, row in rows]


def _read(dataset: DatasetConfig, path: str, key: str) -> list[dict[str, Any]]:
    file = _download(path, f"{key}.path") if path.startswith(HUB_FILE) else Path(path).expanduser()
    if file.suffix in (".jsonl", ".json") and file.exists():
        return read_json(file, key=f"{key}.path")
    import datasets

    if file.suffix == ".parquet" and file.exists():
        return datasets.Dataset.from_parquet(str(file)).to_list()
    try:
        return datasets.load_dataset(path, split=dataset.split).to_list()
    except (OSError, ValueError) as error:  # no such data set, split or network
        remedy = f"cannot be loaded from Hugging Face ({describe(error).splitlines()[0]}): use another id, or a local file"
        raise ConfigError([Problem(key=f"{key}.path", value=path, remedy=remedy)]) from error


def _with_whole_paths(rows: list[dict[str, Any]], dataset: DatasetConfig, key: str) -> list[dict[str, Any]]:
    """The rows with absolute paths of files. Raises `ConfigError` for one that is no file below the rows' folder."""
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
    """Why a row's file is refused, "" if it is not; rows come from others and must not name any file of this user."""
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

    Raises `ConfigError` if the row's question is missing, or is neither a text nor a list of messages with role and content.
    """
    if problem := _question_problem(row):
        remedy = f"row {row_number} {problem}; {_REMEDY}"
        raise ConfigError([Problem(key=f"data.{dataset}", value=sorted(row), remedy=remedy)])
    question = _question(row)
    messages = [{"role": "user", "content": question}] if isinstance(question, str) else [dict(m) for m in question]
    answer = (row.get("reward_model") or {}).get("ground_truth")
    if answer is None:
        answer = next((row[name] for name in _ANSWER_FIELDS if row.get(name) is not None), [])
    ground_truth = [str(a) for a in answer] if isinstance(answer, (list, tuple)) else [str(answer)]
    metadata = {name: value for name, value in row.items() if name not in (*_QUESTION_FIELDS, "reward_model")}
    return Prompt(index=index, row=row_number, messages=messages, ground_truth=ground_truth, metadata=metadata, dataset=dataset)


def _question(row: dict[str, Any]) -> Any:
    return next((row[name] for name in _QUESTION_FIELDS if row.get(name)), None)


def _question_problem(row: dict[str, Any]) -> str:
    """Why the row's question is unusable, "" if it is usable."""
    question = _question(row)
    if isinstance(question, str):
        return ""
    if question is None:
        return f"has none of the fields {', '.join(_QUESTION_FIELDS)}"
    if not isinstance(question, (list, tuple)):
        return f"has a {type(question).__name__} for its question, neither a text nor messages"
    if not all(isinstance(message, dict) and _can_be_said(message) for message in question):
        return "has a message without role or content"
    return ""


def _can_be_said(message: dict[str, Any]) -> bool:
    return bool(message.get("role")) and (message.get("content") is not None or bool(message.get("tool_calls")))
