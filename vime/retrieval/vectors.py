"""Dense retrieval: FAISS over embeddings, with exact search or one of three approximate ones."""

from pathlib import Path
from typing import Any

import numpy as np

from vime.config import RetrievalConfig, VectorSearch
from vime.errors import ConfigError, Problem
from vime.retrieval.corpus import Corpus, ReportProgress
from vime.retrieval.embedding import BATCH_SIZE, make_embedder

FILE = "vectors.faiss"
HNSW_NEIGHBOURS = 32
DIMENSIONS_PER_BYTE = 8
"""Dimensions that product quantization turns into one byte."""
HNSW_EFFORT = 128
"""Candidates that a search of the HNSW graph keeps (efSearch)."""
MIN_CELLS, SHARE_OF_CELLS = 32, 8
"""A search of the inverted file visits an eighth of its cells, and at least 32."""
MAX_TRAINING_VECTORS_PER_CELL = 256
"""Most vectors per cell that FAISS uses to train the inverted file."""
CELLS = (VectorSearch.ivf, VectorSearch.ivf_pq)
"""Searches of an inverted file."""
MIN_PASSAGES_OF_PQ = 9984
"""Product quantization learns 256 values for each byte, from 39 vectors each (FAISS's own minimum)."""
ID_BYTES = 8


class VectorIndex:
    """Finds passages by the cosine between their embeddings and the query's."""

    def __init__(self, config: RetrievalConfig) -> None:
        import faiss

        faiss.omp_set_num_threads(config.num_threads)
        self._faiss: Any = faiss
        self._search = config.search
        self._embedder = make_embedder(config)
        self._index: Any = None

    def build(self, corpus: Corpus, progress: ReportProgress) -> None:
        """Embeds all passages and indexes them."""
        self._embedder.fit(corpus, progress)
        self._index, waiting = None, []
        done, num_training = 0, self._num_training(len(corpus))
        for texts in corpus.batches(BATCH_SIZE):
            waiting.append(self._embedder.embed(texts, are_queries=False))
            done += len(texts)
            if self._index is None and (done >= num_training or done == len(corpus)):
                self._index = self._make(np.concatenate(waiting), len(corpus))
            if self._index is not None:
                self._index.add(np.concatenate(waiting))
                waiting = []
            progress("embedding", done, len(corpus))

    def search(self, queries: list[str], topk: int) -> list[list[tuple[int, float]]]:
        """Positions and cosines of passages per query, best first; a query without any known feature finds nothing."""
        vectors = self._embedder.embed(queries, are_queries=True)
        scores_qk, positions_qk = self._index.search(vectors, min(topk, self._index.ntotal))
        return [
            [(int(position), float(score)) for position, score in zip(positions, scores) if position >= 0 and vector.any()]
            for positions, scores, vector in zip(positions_qk, scores_qk, vectors)
        ]

    def save(self, folder: Path) -> None:
        """Writes vectors and embedder."""
        self._embedder.save(folder)
        self._faiss.write_index(self._index, str(folder / FILE))

    def load(self, folder: Path) -> None:
        """Reads what `save` wrote."""
        self._embedder.load(folder)
        self._index = self._faiss.read_index(str(folder / FILE))
        set_effort(self._index, self._search, num_passages=self._index.ntotal)

    def _num_training(self, num_documents: int) -> int:
        """Number of vectors that are needed before the first is added."""
        if self._search not in CELLS:
            return 1
        return min(num_documents, MAX_TRAINING_VECTORS_PER_CELL * num_cells(num_documents))

    def _make(self, vectors: "np.ndarray", num_documents: int) -> Any:
        index = make_index(self._search, num_passages=num_documents, dimensions=vectors.shape[1])
        if not index.is_trained:
            index.train(vectors)
        return index


def make_index(search: VectorSearch, *, num_passages: int, dimensions: int) -> Any:
    """An empty index for `num_passages` vectors; an index with cells must still be trained."""
    import faiss

    description = factory_string(search, num_passages=num_passages, dimensions=dimensions)
    index = faiss.index_factory(dimensions, description, faiss.METRIC_INNER_PRODUCT)
    set_effort(index, search, num_passages=num_passages)
    return index


def set_effort(index: Any, search: VectorSearch, *, num_passages: int) -> None:
    """Sets how many cells or candidates an approximate search visits."""
    if search in CELLS:
        index.nprobe = min(num_cells(num_passages), max(MIN_CELLS, num_cells(num_passages) // SHARE_OF_CELLS))
    elif search is VectorSearch.hnsw:
        index.hnsw.efSearch = HNSW_EFFORT


def factory_string(search: VectorSearch, *, num_passages: int, dimensions: int) -> str:
    """FAISS's description of the index for `num_passages` vectors.

    Raises ConfigError for fewer passages than product quantization can be trained on.
    """
    if search is VectorSearch.flat:
        return "Flat"
    if search is VectorSearch.hnsw:
        return f"HNSW{HNSW_NEIGHBOURS},Flat"
    if search is VectorSearch.ivf:
        return f"IVF{num_cells(num_passages)},Flat"
    if num_passages < MIN_PASSAGES_OF_PQ or dimensions % DIMENSIONS_PER_BYTE:
        remedy = f"needs {MIN_PASSAGES_OF_PQ:,} passages and dimensions that {DIMENSIONS_PER_BYTE} divides, "
        remedy += f"but there are {num_passages:,} of {dimensions} dimensions: use flat or ivf"
        raise ConfigError([Problem(key="retrieval.search", value=search.value, remedy=remedy)])
    codes = f"PQ{dimensions // DIMENSIONS_PER_BYTE}x8np"  # np: no polysemous codes, whose training takes minutes
    return f"IVF{num_cells(num_passages)},{codes}"


def index_bytes(search: VectorSearch, *, num_passages: int, dimensions: int) -> int:
    """Memory of an index: vectors in float32 or compressed, with the graph or the cells of those that have one."""
    vector, cells = 4 * dimensions, 4 * dimensions * num_cells(num_passages)
    if search is VectorSearch.flat:
        return num_passages * vector
    if search is VectorSearch.hnsw:  # twice the neighbours at the bottom, once at each level above, plus level and offset
        neighbours = 2 * HNSW_NEIGHBOURS + HNSW_NEIGHBOURS / (HNSW_NEIGHBOURS - 1)
        return num_passages * (vector + round(4 * neighbours) + ID_BYTES + 4)
    if search is VectorSearch.ivf:
        return num_passages * (vector + ID_BYTES) + cells
    return num_passages * (dimensions // DIMENSIONS_PER_BYTE + ID_BYTES) + cells + 256 * vector


def num_cells(num_passages: int) -> int:
    """Number of cells of an inverted file for `num_passages` vectors."""
    return max(1, round(num_passages**0.5))
