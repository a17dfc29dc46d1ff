"""Keyword retrieval: BM25 (bm25s), which needs no embedding."""

from pathlib import Path
from typing import Any

from vime.config import RetrievalConfig
from vime.retrieval.corpus import Corpus, Progress

BATCH_SIZE = 1000
TOKENS = r"(?u)\b\w+\b"
"""Also words of one character: numbers and names are often that short."""


class KeywordIndex:
    """Passages by BM25 in Lucene's form, k1 1.5 and b 0.75."""

    def __init__(self, config: RetrievalConfig) -> None:
        self._index: Any = None

    def build(self, corpus: Corpus, progress: Progress) -> None:
        """Splits all passages into words and scores each word in each of them."""
        import bm25s

        words: list[list[int]] = []
        vocabulary: dict[str, int] = {}
        for texts in corpus.batches(BATCH_SIZE):
            for tokens in _words(texts):
                words.append([vocabulary.setdefault(token, len(vocabulary)) for token in tokens])
            progress("splitting into words", len(words), len(corpus))
        self._index = bm25s.BM25(method="lucene")
        self._index.index((words, vocabulary or {"": 0}), show_progress=False)

    def search(self, queries: list[str], topk: int) -> list[list[tuple[int, float]]]:
        """Positions and scores per query, best first, without those that share no word with it."""
        count = min(topk, self._index.scores["num_docs"])
        positions_qk, scores_qk = self._index.retrieve(_words(queries), k=count, show_progress=False)
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


def _words(texts: list[str]) -> list[list[str]]:
    import bm25s

    clean = [text.encode(errors="replace").decode() for text in texts]  # half a surrogate pair has no UTF-8
    found: Any = bm25s.tokenize(clean, token_pattern=TOKENS, stopwords=[], return_ids=False, show_progress=False)
    return found
