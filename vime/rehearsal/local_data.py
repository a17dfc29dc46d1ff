"""The data of a rehearsal: two items of each set, and files and passages of its own where those of the run are not here."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vime.config import DatasetConfig, RetrievalBackend, RetrievalConfig, RunConfig
from vime.data.file_formats import kind_of

NUM_ITEMS = 2
HASHED = "hashed"
MADE_KINDS = (".json", ".jsonl")


@dataclass(kw_only=True, slots=True)
class Shrunk:
    """The configuration of a rehearsal, and what it replaced, in words."""

    config: RunConfig
    replaced: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    """Names of the data files that are to be made in `data_folder`."""


def data_folder(config: RunConfig) -> Path:
    """The folder of those data files of a rehearsal that are not on this machine."""
    return Path(str(config.output_dir)) / "rehearsal" / "data"


def local_retrieval(config: RunConfig, shrunk: Shrunk) -> RetrievalConfig:
    """The retrieval service over passages that are here, without an encoder that is not."""
    retrieval = config.retrieval
    if not retrieval.is_there:
        return retrieval
    small = replace(retrieval, url=None, index_folder=None)
    if small.corpus is None and small.generator is None:
        small.corpus = "passages.jsonl"
    if small.corpus is not None:
        small.corpus = _local(small.corpus, config, shrunk)
    if small.backend is not RetrievalBackend.bm25 and not Path(small.embedding).is_dir() and small.embedding != HASHED:
        shrunk.replaced.append(f"retrieval: the hashed embedding in place of {small.embedding}")
        small = replace(small, embedding=HASHED, embedding_url=None, query_instruction="", passage_instruction="")
    return small


def local_dataset(dataset: DatasetConfig, config: RunConfig, shrunk: Shrunk) -> DatasetConfig:
    """Two items; from a file of the rehearsal where the file is not on this machine."""
    return replace(
        dataset,
        num_items=min(dataset.num_items or NUM_ITEMS, NUM_ITEMS),
        path=_local(dataset.path, config, shrunk) if dataset.path else None,
        generator_args=_local_values(dataset.generator_args, config, shrunk),
    )


def _local_values(values: Any, config: RunConfig, shrunk: Shrunk) -> Any:
    """Arguments of a generator, with files and folders of the rehearsal in place of those that are not there."""
    if isinstance(values, dict):
        found = {name: _local_values(value, config, shrunk) for name, value in values.items()}
        if isinstance(folder := values.get("folder"), str) and not any(Path(folder).glob(f"*{values.get('benchmark', '')}*")):
            found["folder"] = str(data_folder(config))
        return found
    if isinstance(values, str) and kind_of(values):
        return _local(values, config, shrunk)
    return values


def _local(path: str, config: RunConfig, shrunk: Shrunk) -> str:
    if Path(path).exists():
        return path
    name, kind = Path(path).name, kind_of(path)
    if kind not in MADE_KINDS:
        name = f"{name[: name.lower().rindex(kind)] if kind else name}.jsonl"
    shrunk.files.append(name)
    return str(data_folder(config) / name)
