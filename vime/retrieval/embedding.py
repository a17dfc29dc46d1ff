"""Embeddings of passages and queries, by hashing (nothing is downloaded), by a model in this process, or by a server."""

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from vime.config import Pooling, RetrievalConfig
from vime.errors import ServerError
from vime.retrieval.corpus import Corpus, ReportProgress
from vime.retrieval.word_splitting import folded, words_of

HASHED = "hashed"
"""Value of `retrieval.embedding` for embeddings by hashing, with which FAISS runs where no model can be downloaded."""
NUM_FEATURES = 2**18
BATCH_SIZE = 256
MODEL_BATCH_SIZE = 32
MAX_MODEL_TOKENS = 512
REQUEST_SECONDS = 60.0


class Embedder(Protocol):
    """Maps texts to unit vectors, whose inner product is their cosine; a text without features has the vector 0."""

    def fit(self, corpus: Corpus, progress: ReportProgress) -> None:
        """Fits the embedding to the corpus, if it needs that."""
        ...

    def embed(self, texts: list[str], *, are_queries: bool) -> "np.ndarray":
        """Vectors [texts, dimensions] in float32. Raises ServerError if the model is served elsewhere and does not answer."""
        ...

    def save(self, folder: Path) -> None:
        """Writes the state that `fit` learned."""
        ...

    def load(self, folder: Path) -> None:
        """Reads what `save` wrote."""
        ...


def make_embedder(config: RetrievalConfig) -> Embedder:
    """The embedder that a configuration asks for."""
    if config.embedding == HASHED:
        return HashedEmbedder(config.embedding_dimensions)
    if config.embedding_url is not None:
        return ServedEmbedder(config)
    return ModelEmbedder(config)


class HashedEmbedder:
    """TF-IDF over hashed words, word pairs and character n-grams, randomly projected to a few hundred dimensions.

    It compares spelling, not meaning: like BM25 it finds no synonyms. The projection changes cosines by about 1/sqrt(dimensions)
    (Li, Hastie and Church, Very Sparse Random Projections, 2006). Equal corpora give equal vectors.
    """

    def __init__(self, dimensions: int) -> None:
        from sklearn.feature_extraction.text import HashingVectorizer

        shared: dict[str, Any] = {"n_features": NUM_FEATURES, "norm": None, "dtype": np.float32, "lowercase": False}
        own_words = {"tokenizer": words_of, "token_pattern": None}
        self._words = HashingVectorizer(ngram_range=(1, 2), **own_words, **shared)
        self._characters = HashingVectorizer(analyzer="char_wb", ngram_range=(3, 4), **shared)
        self._dimensions = dimensions
        self._weights: Any = None
        self._projection: Any = None

    def fit(self, corpus: Corpus, progress: ReportProgress) -> None:
        """Counts the passages in which each feature occurs, and draws the projection."""
        from sklearn.random_projection import SparseRandomProjection

        counts, done = np.zeros(NUM_FEATURES), 0
        for texts in corpus.batches(BATCH_SIZE):
            features = self._features(texts)
            counts += np.bincount(features.indices, minlength=NUM_FEATURES)
            done += len(texts)
            progress("counting features", done, len(corpus))
        self._weights = (np.log((1 + len(corpus)) / (1 + counts)) + 1).astype(np.float32)
        components: Any = self._dimensions  # its annotation knows "auto" only
        projection: Any = SparseRandomProjection(n_components=components, random_state=0)
        projection.fit(features[:1])
        self._projection = projection.components_.T.tocsr().astype(np.float32)

    def embed(self, texts: list[str], *, are_queries: bool) -> "np.ndarray":
        """Vectors [texts, dimensions] in float32; passages and queries are treated alike."""
        from sklearn.preprocessing import normalize

        features = self._features(texts)
        features.data = np.sign(features.data) * np.log1p(np.abs(features.data)) * self._weights[features.indices]
        vectors = (normalize(features) @ self._projection).toarray()
        return np.ascontiguousarray(normalize(vectors), dtype=np.float32)

    def save(self, folder: Path) -> None:
        """Writes the weights of the features and the projection."""
        import scipy.sparse

        np.save(folder / "weights.npy", self._weights)
        scipy.sparse.save_npz(folder / "projection.npz", self._projection)

    def load(self, folder: Path) -> None:
        """Reads the weights of the features and the projection."""
        import scipy.sparse

        self._weights = np.load(folder / "weights.npy")
        self._projection = scipy.sparse.load_npz(folder / "projection.npz")

    def _features(self, texts: list[str]) -> Any:
        clean = [folded(text) for text in texts]
        features = (self._words.transform(clean) + self._characters.transform(clean)).tocsr()
        features.eliminate_zeros()
        return features


class ServedEmbedder:
    """A model behind OpenAI's embeddings API, for example vLLM's."""

    def __init__(self, config: RetrievalConfig) -> None:
        self._model, self._prefixes = config.embedding, prefixes(config)
        self._url = f"{(config.embedding_url or '').rstrip('/').removesuffix('/v1')}/v1/embeddings"

    def fit(self, corpus: Corpus, progress: ReportProgress) -> None:
        """Does nothing, because the model is already trained."""

    def embed(self, texts: list[str], *, are_queries: bool) -> "np.ndarray":
        """Raises ServerError if the server does not answer."""
        prefix = self._prefixes[are_queries]
        vectors = [self._ask([prefix + text for text in texts[i : i + BATCH_SIZE]]) for i in range(0, len(texts), BATCH_SIZE)]
        return _normalized(np.concatenate(vectors))

    def save(self, folder: Path) -> None:
        """Does nothing, because nothing was fitted."""

    def load(self, folder: Path) -> None:
        """Does nothing, because nothing was saved."""

    def _ask(self, texts: list[str]) -> "np.ndarray":
        body = json.dumps({"model": self._model, "input": texts, "encoding_format": "float"}).encode()
        request = urllib.request.Request(self._url, data=body, headers={"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=REQUEST_SECONDS) as response:
                rows = sorted(json.load(response)["data"], key=lambda row: row["index"])
            return np.asarray([row["embedding"] for row in rows], dtype=np.float32)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ServerError(f"{self._url} gave no embeddings of {self._model}: {error!r}") from None


class ModelEmbedder:
    """A Hugging Face encoder in this process."""

    def __init__(self, config: RetrievalConfig) -> None:
        import torch
        from transformers import AutoModel, AutoTokenizer

        self._prefixes, self._pooling = prefixes(config), config.pooling
        self._tokenizer: Any = AutoTokenizer.from_pretrained(config.embedding, padding_side="right")
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._model: Any = AutoModel.from_pretrained(config.embedding).to(self._device).eval()

    def fit(self, corpus: Corpus, progress: ReportProgress) -> None:
        """Does nothing, because the model is already trained."""

    def embed(self, texts: list[str], *, are_queries: bool) -> "np.ndarray":
        """The mean or last hidden state of the first 512 tokens of each text."""
        prefix = self._prefixes[are_queries]
        vectors = [
            self._forward([prefix + text for text in texts[start : start + MODEL_BATCH_SIZE]])
            for start in range(0, len(texts), MODEL_BATCH_SIZE)
        ]
        return _normalized(np.concatenate(vectors))

    def save(self, folder: Path) -> None:
        """Does nothing, because nothing was fitted."""

    def load(self, folder: Path) -> None:
        """Does nothing, because nothing was saved."""

    def _forward(self, texts: list[str]) -> "np.ndarray":
        import torch

        inputs = self._tokenizer(texts, padding=True, truncation=True, max_length=MAX_MODEL_TOKENS, return_tensors="pt")
        inputs = inputs.to(self._device)
        with torch.inference_mode():
            hidden_btd = self._model(**inputs).last_hidden_state.float()
        mask_bt = inputs["attention_mask"]
        if self._pooling is Pooling.last:
            vectors_bd = hidden_btd[torch.arange(len(texts)), mask_bt.sum(1) - 1]
        else:
            vectors_bd = (hidden_btd * mask_bt[..., None]).sum(1) / mask_bt.sum(1, keepdim=True)
        return vectors_bd.cpu().numpy()


def prefixes(config: RetrievalConfig) -> tuple[str, str]:
    """Texts that an encoder is given before a passage, and before a query."""
    return config.passage_instruction, config.query_instruction


def _normalized(vectors: "np.ndarray") -> "np.ndarray":
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.ascontiguousarray(vectors / np.maximum(norms, 1e-12), dtype=np.float32)
