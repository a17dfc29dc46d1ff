"""Building, saving and searching an index: both backends, exact and approximate search, what makes a saved index stale."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from vime.config import RetrievalBackend, RetrievalConfig, VectorSearch
from vime.errors import ConfigError
from vime.retrieval.corpus import Corpus, read_line
from vime.retrieval.embedding import HashedEmbedder
from vime.retrieval.index import MANIFEST, Index, open_index

BACKENDS = [
    ("bm25", "flat"),
    ("faiss", "flat"),
    ("faiss", "ivf"),
    ("faiss", "hnsw"),
]


def silent(phase: str, done: int, total: int) -> None:
    """Discards reports of progress."""


def config_of(corpus: Path, backend: str = "bm25", search: str = "flat") -> RetrievalConfig:
    """Settings of one index."""
    return RetrievalConfig(corpus=str(corpus), backend=RetrievalBackend(backend), search=VectorSearch(search))


def found_ids(index: Index, query: str, topk: int = 5) -> list[str]:
    """Ids of the passages that a query finds."""
    return [document.id for document, _ in index.search([query], topk)[0]]


@pytest.fixture(scope="module")
def make_index(corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Index, Path]]:
    """`make_index(backend, search)`: an index of the corpus and its folder, built once, as searching changes neither."""
    made: dict[tuple[str, str], tuple[Index, Path]] = {}

    def get(backend: str = "faiss", search: str = "flat") -> tuple[Index, Path]:
        if (backend, search) not in made:
            folder = tmp_path_factory.mktemp(f"{backend}-{search}") / "index"
            made[backend, search] = open_index(config_of(corpus_file, backend, search), folder, silent), folder
        return made[backend, search]

    return get


@pytest.mark.parametrize(("backend", "search"), BACKENDS)
def test_every_passage_is_found_by_words_of_its_own_after_a_restart_too(
    corpus_file: Path, make_index: Callable[..., tuple[Index, Path]], backend: str, search: str
):
    (built, folder), phases = make_index(backend, search), []
    again = open_index(config_of(corpus_file, backend, search), folder, lambda phase, done, total: phases.append(phase))
    assert phases == ["reading the index"]
    queries = [" ".join(built.corpus[number].text.split()[5:13]) for number in range(0, 400, 8)]
    first = [found[0][0].id for found in built.search(queries, 5)]
    assert sum(found == f"p{number}" for found, number in zip(first, range(0, 400, 8))) >= 48
    assert [found[0][0].id for found in again.search(queries, 5)] == first


def test_flat_search_finds_exactly_what_brute_force_finds(make_index: Callable[..., tuple[Index, Path]]):
    index, folder = make_index()
    embedder = HashedEmbedder(512)
    embedder.load(folder)
    vectors = embedder.embed([index.corpus[number].searched for number in range(400)], are_queries=False)
    queries = [" ".join(index.corpus[number].text.split()[:3]) for number in range(0, 400, 5)]
    scores = embedder.embed(queries, are_queries=True) @ vectors.T
    for query, row, passages in zip(queries, scores, index.search(queries, 10)):
        best = set(np.argsort(-row)[:10].tolist())
        assert {int(document.id[1:]) for document, _ in passages} == best, query
        assert [score for _, score in passages] == pytest.approx(sorted(row.tolist(), reverse=True)[:10], abs=1e-5)


@pytest.mark.parametrize(("search", "least"), [("ivf", 0.99), ("hnsw", 0.9)])
def test_approximate_search_finds_most_of_it(make_index: Callable[..., tuple[Index, Path]], search: str, least: float):
    exact, approximate = make_index()[0], make_index("faiss", search)[0]
    queries = [" ".join(exact.corpus[number].text.split()[:4]) for number in range(0, 400, 4)]
    shared = [
        len({document.id for document, _ in one} & {document.id for document, _ in other}) / len(one)
        for one, other in zip(exact.search(queries, 5), approximate.search(queries, 5))
    ]
    assert sum(shared) / len(shared) >= least


@pytest.mark.parametrize("backend", ["bm25", "faiss"])
def test_strange_queries_find_something_or_nothing_and_never_fail(make_index: Callable[..., tuple[Index, Path]], backend: str):
    index, _ = make_index(backend)
    queries = ["!!!", "\ud800 half a pair", "\x00\x01", "record 17", "日本語", "<|im_end|>", "x" * 20_000]
    found = index.search(queries, 10_000)
    assert len(found) == len(queries)
    if backend == "bm25":
        assert found[0] == [] and found[2] == []
    assert found[3][0][0].id == "p17"
    assert all(len(passages) <= 400 for passages in found)
    for passages in found:
        scores = [score for _, score in passages]
        assert scores == sorted(scores, reverse=True)


def test_the_hashed_embedding_is_the_same_every_time(corpus_file: Path):
    corpus, vectors = Corpus.scan(corpus_file), []
    for _ in range(2):
        embedder = HashedEmbedder(64)
        embedder.fit(corpus, silent)
        vectors.append(embedder.embed(["record 17", corpus[3].text], are_queries=True))
    assert np.array_equal(vectors[0], vectors[1])
    assert np.linalg.norm(vectors[0], axis=1) == pytest.approx([1.0, 1.0])


def test_another_corpus_or_setting_makes_another_index(corpus_file: Path, tmp_path: Path):
    corpus = tmp_path / "small.jsonl"
    corpus.write_text("".join(corpus_file.read_text().splitlines(keepends=True)[:20]))
    folder, phases = tmp_path / "index", []

    def note(phase: str, done: int, total: int) -> None:
        phases.append(phase)

    open_index(config_of(corpus), folder, silent)
    first = json.loads((folder / MANIFEST).read_text())
    corpus.write_text(corpus.read_text().replace("record 3", "record three"))
    index = open_index(config_of(corpus), folder, note)
    assert "reading" in phases and found_ids(index, "three") == ["p3"]
    changed = json.loads((folder / MANIFEST).read_text())
    assert changed["corpus_sha256"] != first["corpus_sha256"]
    phases.clear()
    open_index(config_of(corpus, "faiss"), folder, note)
    assert "embedding" in phases
    assert [path.name for path in tmp_path.iterdir() if "unfinished" in path.name] == []


def test_progress_counts_every_passage(corpus_file: Path, tmp_path: Path):
    seen: dict[str, list[int]] = {}

    def note(phase: str, done: int, total: int) -> None:
        assert total == 400
        seen.setdefault(phase, []).append(done)

    open_index(config_of(corpus_file, "faiss"), tmp_path / "index", note)
    assert set(seen) == {"reading", "counting features", "embedding"}
    assert all(counts == sorted(counts) and counts[-1] == 400 for counts in seen.values())


@pytest.mark.parametrize(
    ("lines", "remedy"),
    [
        ("", "empty"),
        ("\n\n", "empty"),
        ('{"id": "1", "title": "a", "text": "b"}\nnonsense\n', "passage 2 cannot be read"),
        ('{"id": "1", "text": "b"}\n{"id": "1", "text": "c"}\n', "the id 1 of another"),
        ('{"title": "no id", "text": "b"}\n', "passage 1 cannot be read"),
        ("[1]\n", "passage 1 cannot be read"),
        ("[" * 100_000 + "\n", "passage 1 cannot be read"),
    ],
)
def test_a_corpus_that_is_none_is_refused_with_its_line(tmp_path: Path, lines: str, remedy: str):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(lines)
    with pytest.raises(ConfigError, match=remedy):
        open_index(config_of(corpus), tmp_path / "index", silent)
    assert not (tmp_path / "index").exists()


@pytest.mark.parametrize(
    ("content", "remedy"),
    [
        (gzip.compress(b'{"id": "1", "text": "a"}\n', mtime=0), "is compressed: unpack it"),
        (b"version https://git-lfs.github.com/spec/v1\n", "is a pointer of Git LFS"),
        (b"PAR1....", "is Parquet"),
        ('{"id": "1", "text": "a"}\n'.encode("utf-16"), "no UTF-8"),
    ],
)
def test_a_corpus_of_another_kind_is_refused_as_what_it_is(tmp_path: Path, content: bytes, remedy: str):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_bytes(content)
    with pytest.raises(ConfigError, match=remedy):
        open_index(config_of(corpus), tmp_path / "index", silent)


def test_both_layouts_of_a_passage_are_read():
    path = Path("corpus.jsonl")
    row = read_line(b'{"id": 7, "contents": "\\"Ada\\"\\nShe wrote."}', path=path, number=1)
    assert (row.id, row.title, row.text) == ("7", "Ada", "She wrote.")
    row = read_line(b'{"id": "8", "title": null, "text": "Alone."}', path=path, number=1)
    assert (row.id, row.title, row.searched) == ("8", "", "Alone.")


def test_empty_lines_do_not_count(tmp_path: Path):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('\n{"id": "1", "text": "one"}\n\n{"id": "2", "text": "two"}')
    found = Corpus.scan(corpus)
    assert [found[number].id for number in range(len(found))] == ["1", "2"]
