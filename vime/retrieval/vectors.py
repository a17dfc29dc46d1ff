"""Dense retrieval: FAISS over embeddings, with exact search or one of two approximate ones."""

from pathlib import Path
from typing import Any

import numpy as np

from vime.config import RetrievalConfig, VectorSearch
from vime.retrieval.corpus import Corpus, Progress
from vime.retrieval.embedding import BATCH_SIZE, make_embedder

FILE = "vectors.faiss"
HNSW_NEIGHBOURS = 32
HNSW_EFFORT = 128
"""Candidates that a search of the HNSW graph keeps (efSearch)."""
MIN_CELLS, SHARE_OF_CELLS = 32, 8
"""A search of the inverted file visits an eighth of its cells, and at least 32."""
MAX_TRAINING_VECTORS_PER_CELL = 256
"""Most vectors per cell that FAISS uses to train the inverted file."""


class VectorIndex:
    """Finds passages by the cosine between their embeddings and the query's."""

    def __init__(self, config: RetrievalConfig) -> None:
        import faiss

        faiss.omp_set_num_threads(config.num_threads)
        self._faiss: Any = faiss
        self._search = config.search
        self._embedder = make_embedder(config)
        self._index: Any = None

    def build(self, corpus: Corpus, progress: Progress) -> None:
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
        self._set_effort(len_of=self._index.ntotal)

    def _num_training(self, num_documents: int) -> int:
        """Number of vectors that are needed before the first is added."""
        if self._search is not VectorSearch.ivf:
            return 1
        return min(num_documents, MAX_TRAINING_VECTORS_PER_CELL * _num_cells(num_documents))

    def _make(self, vectors: "np.ndarray", num_documents: int) -> Any:
        dimensions, inner_product = vectors.shape[1], self._faiss.METRIC_INNER_PRODUCT
        if self._search is VectorSearch.flat:
            return self._faiss.IndexFlatIP(dimensions)
        if self._search is VectorSearch.hnsw:
            self._index = self._faiss.IndexHNSWFlat(dimensions, HNSW_NEIGHBOURS, inner_product)
        else:
            quantizer = self._faiss.IndexFlatIP(dimensions)
            self._index = self._faiss.IndexIVFFlat(quantizer, dimensions, _num_cells(num_documents), inner_product)
            self._index.own_fields, _ = True, quantizer.this.disown()
            self._index.train(vectors)
        self._set_effort(len_of=num_documents)
        return self._index

    def _set_effort(self, *, len_of: int) -> None:
        """Sets how many cells or candidates an approximate search visits."""
        if self._search is VectorSearch.ivf:
            self._index.nprobe = min(_num_cells(len_of), max(MIN_CELLS, _num_cells(len_of) // SHARE_OF_CELLS))
        elif self._search is VectorSearch.hnsw:
            self._index.hnsw.efSearch = HNSW_EFFORT


def _num_cells(num_documents: int) -> int:
    return max(1, round(num_documents**0.5))
