"""An index of a corpus, which is built once, saved with a manifest, and read again while corpus and settings are the same."""

import json
import logging
import os
import shutil
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from vime.config import RetrievalBackend, RetrievalConfig
from vime.retrieval.corpus import Corpus, Document, ReportProgress, checksum
from vime.retrieval.embedding import HASHED
from vime.retrieval.keyword import KeywordIndex
from vime.retrieval.vectors import VectorIndex
from vime.retrieval.word_splitting import RULE

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
FORMAT = 1


class Backend(Protocol):
    """Finds passages: `VectorIndex` or `KeywordIndex`."""

    def build(self, corpus: Corpus, progress: ReportProgress) -> None: ...
    def search(self, queries: list[str], topk: int) -> list[list[tuple[int, float]]]: ...
    def save(self, folder: Path) -> None: ...
    def load(self, folder: Path) -> None: ...


class Index:
    """A corpus with the backend that finds its passages."""

    def __init__(self, corpus: Corpus, backend: Backend) -> None:
        self.corpus, self._backend = corpus, backend

    def search(self, queries: list[str], topk: int) -> list[list[tuple[Document, float]]]:
        """Passages and scores per query, best first, at most `topk`."""
        found = self._backend.search(queries, topk)
        return [[(self.corpus[position], score) for position, score in passages] for passages in found]


def open_index(config: RetrievalConfig, folder: Path, progress: ReportProgress) -> Index:
    """The index in `folder` if it was built from this corpus with these settings; otherwise it is built and saved there.

    Raises ConfigError if the corpus cannot be read. An interrupted build leaves no folder that could be taken for an index.
    """
    path = Path(config.corpus or "")
    corpus = Corpus.scan(path)
    wanted = _manifest(config, checksum(path), len(corpus))
    backend = make_backend(config)
    if _read_manifest(folder) == wanted:
        backend.load(folder)
        corpus = Corpus(path, np.load(folder / "offsets.npy"))
        progress("reading the index", len(corpus), len(corpus))
        return Index(corpus, backend)
    corpus.check_ids(progress)
    backend.build(corpus, progress)
    _save(backend, corpus, wanted, folder)
    return Index(corpus, backend)


def make_backend(config: RetrievalConfig) -> Backend:
    """The backend that a configuration asks for, without passages."""
    return KeywordIndex(config) if config.backend is RetrievalBackend.bm25 else VectorIndex(config)


def _save(backend: Backend, corpus: Corpus, manifest: dict[str, Any], folder: Path) -> None:
    """Writes the index into a temporary folder, which is renamed when it is complete."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = folder.with_name(f"{folder.name}.unfinished-{os.getpid()}")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    try:
        backend.save(unfinished)
        np.save(unfinished / "offsets.npy", corpus.offsets)
        (unfinished / MANIFEST).write_text(json.dumps(manifest, indent=1))
        shutil.rmtree(folder, ignore_errors=True)
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _manifest(config: RetrievalConfig, corpus_checksum: str, num_documents: int) -> dict[str, Any]:
    """Everything that an index depends on; if any value differs, the index is built again."""
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "corpus_sha256": corpus_checksum,
        "num_documents": num_documents,
        "backend": config.backend.value,
    }
    if config.backend is RetrievalBackend.bm25:
        return manifest | {"bm25s": metadata.version("bm25s"), "words": RULE}
    return manifest | {
        "faiss": metadata.version("faiss-cpu"),
        "search": config.search.value,
        "embedding": config.embedding,
        "embedding_dimensions": config.embedding_dimensions,
        "pooling": config.pooling.value,
        **({"words": RULE} if config.embedding == HASHED else {}),
        **({"passage_instruction": config.passage_instruction} if config.passage_instruction else {}),
    }


def _read_manifest(folder: Path) -> dict[str, Any] | None:
    try:
        return json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError):
        return None
