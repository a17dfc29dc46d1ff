"""Keyword retrieval: BM25 (bm25s), which needs no embedding."""

from pathlib import Path
from typing import Any

from vime.config import RetrievalConfig
from vime.retrieval.corpus import Corpus, ReportProgress
from vime.retrieval.word_splitting import folded, words_of

BATCH_SIZE = 1000


class KeywordIndex:
    """Passages by BM25 in Lucene's form, k1 1.5 and b 0.75."""

    def __init__(self, config: RetrievalConfig) -> None:
        self._index: Any = None

    def build(self, corpus: Corpus, progress: ReportProgress) -> None:
        """Splits all passages into words and scores each word in each of them."""
        import bm25s

        words: list[list[int]] = []
        vocabulary: dict[str, int] = {}
        for texts in corpus.batches(BATCH_SIZE):
            for text in texts:
                words.append([vocabulary.setdefault(word, len(vocabulary)) for word in words_of(folded(text))])
            progress("splitting into words", len(words), len(corpus))
        self._index = bm25s.BM25(method="lucene")
        self._index.index((words, vocabulary or {"": 0}), show_progress=False)

    def search(self, queries: list[str], topk: int) -> list[list[tuple[int, float]]]:
        """Positions and scores per query, best first, without those that share no word with it."""
        count = min(topk, self._index.scores["num_docs"])
        words = [words_of(folded(query)) for query in queries]
        positions_qk, scores_qk = self._index.retrieve(words, k=count, show_progress=False)
        return [
            [(int(position), float(score)) for position, score in zip(positions, scores) if score > 0]
            for positions, scores in zip(positions_qk, scores_qk)
        ]

    def save(self, folder: Path) -> None:
        """Writes the scores and the vocabulary."""
        self._index.save(str(folder / "bm25"), show_progress=False)

    def load(self, folder: Path) -> None:
        """Reads what `save` wrote."""
        import bm25s

        self._index = bm25s.BM25.load(str(folder / "bm25"), load_corpus=False)
