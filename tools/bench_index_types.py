"""Queries per second, recall and memory of each type of FAISS index beside exact search, and its memory for wiki-18.

    python tools/bench_index_types.py [--passages 100000] [--dimensions 768] [--queries 1000] [--json PATH] [--markdown PATH]

The passages are made up: forty words, half of them of one of a thousand topics and half of a language's common words; a query is
eight words of one passage. They are embedded once, by hashing, and every type of index holds the same vectors, with the settings
that the retrieval service uses. One thread searches, one query at a time, which is the order of magnitude of a core of the
service. Queries take turns: each type answers a part of them in every round. Memory is the size of the serialized index, and for
wiki-18, Wikipedia as of 2018 in 21,015,324 passages with E5's 768 dimensions, what `index_bytes` plans.
"""

import argparse
import itertools
import json
import random
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from bench_rows import Result, add_options, finish

from vime.config import VectorSearch
from vime.retrieval.corpus import Corpus
from vime.retrieval.embedding import BATCH_SIZE, HashedEmbedder
from vime.retrieval.vectors import index_bytes, make_index

TOPK = 3
NUM_ROUNDS = 10
NUM_TOPICS, TOPIC_WORDS, COMMON_WORDS, PASSAGE_WORDS, QUERY_WORDS = 1000, 200, 20_000, 40, 8
WIKI_PASSAGES, E5_DIMENSIONS = 21_015_324, 768


def write_corpus(path: Path, num_passages: int) -> list[tuple[int, str]]:
    """Writes the passages and returns a query for each with the number of its passage, in another order."""
    rng = random.Random(0)
    words = [
        "".join(rng.choice("bdfgklmnprst") + rng.choice("aeiou") for _ in range(rng.randint(2, 4))) for _ in range(COMMON_WORDS)
    ]
    weights = list(itertools.accumulate(1 / (rank + 10) for rank in range(len(words))))
    topics = [rng.sample(words, TOPIC_WORDS) for _ in range(NUM_TOPICS)]
    queries: list[tuple[int, str]] = []
    with path.open("w") as file:
        for number in range(num_passages):
            text = rng.choices(rng.choice(topics), k=PASSAGE_WORDS // 2)
            text += rng.choices(words, cum_weights=weights, k=PASSAGE_WORDS - len(text))
            rng.shuffle(text)
            file.write(json.dumps({"id": str(number), "title": "", "text": " ".join(text)}) + "\n")
            queries.append((number, " ".join(rng.sample(text, QUERY_WORDS))))
    rng.shuffle(queries)
    return queries


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """Passages to search, queries, and the passage that each query was made from.

    Case(vectors=[passages, dimensions], queries=[queries, dimensions], origins=[17, 3, …])
    """

    vectors: np.ndarray
    queries: np.ndarray
    origins: list[int]


def make_case(num_passages: int, num_queries: int, dimensions: int) -> Case:
    """Passages and queries as vectors."""
    embedder = HashedEmbedder(dimensions)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "passages.jsonl"
        queries = write_corpus(path, num_passages)[:num_queries]
        corpus = Corpus.scan(path)
        embedder.fit(corpus, lambda *_: None)
        vectors = [embedder.embed(texts, are_queries=False) for texts in corpus.batches(BATCH_SIZE)]
    origins, texts = zip(*queries)
    return Case(vectors=np.concatenate(vectors), queries=embedder.embed(list(texts), are_queries=True), origins=list(origins))


def build(search: VectorSearch, vectors: np.ndarray) -> tuple[Any, float]:
    """An index of the vectors, and the seconds that it took."""
    began = time.monotonic()
    index = make_index(search, num_passages=len(vectors), dimensions=vectors.shape[1])
    index.train(vectors)
    index.add(vectors)
    return index, time.monotonic() - began


def ask(index: Any, queries: np.ndarray) -> tuple[list[set[int]], float]:
    """The results of each query, and the seconds of all, one query at a time."""
    began = time.monotonic()
    found = [set(index.search(query[None], TOPK)[1][0].tolist()) for query in queries]
    return found, time.monotonic() - began


def measure(case: Case) -> Result:
    """All types of index on the same vectors, beside exact search."""
    import faiss

    faiss.omp_set_num_threads(1)
    built, num_queries = {search: build(search, case.vectors) for search in VectorSearch}, len(case.origins)
    found: dict[VectorSearch, list[set[int]]] = {search: [] for search in VectorSearch}
    seconds = dict.fromkeys(VectorSearch, 0.0)
    for part in np.array_split(case.queries, NUM_ROUNDS):
        for search, (index, _) in built.items():
            results, spent = ask(index, part)
            found[search] += results
            seconds[search] += spent
    result = Result(title="Index types of the retrieval service", columns=("index", "flat"))
    flat, exact, rate = VectorSearch.flat, found[VectorSearch.flat], num_queries / seconds[VectorSearch.flat]
    bytes_of = {search: faiss.serialize_index(index).nbytes for search, (index, _) in built.items()}
    for search, (_, took) in built.items():
        name, add = search.value, result.add
        recall = sum(len(ours & best) for ours, best in zip(found[search], exact)) / (TOPK * num_queries)
        wiki = {one: index_bytes(one, num_passages=WIKI_PASSAGES, dimensions=E5_DIMENSIONS) / 2**30 for one in (search, flat)}
        own = {one: sum(origin in ids for origin, ids in zip(case.origins, found[one])) for one in (search, flat)}
        add("index", f"{name}: queries", ours=num_queries / seconds[search], reference=rate, unit="queries/s")
        add("index", f"{name}: recall", ours=100 * recall, reference=100.0, unit=f"% of the best {TOPK}")
        shares = {one: 100 * number / num_queries for one, number in own.items()}
        add("index", f"{name}: own passage", ours=shares[search], reference=shares[flat], unit=f"% in the best {TOPK}")
        add("index", f"{name}: memory", ours=bytes_of[search] / 2**20, reference=bytes_of[flat] / 2**20, unit="MiB")
        add("index", f"{name}: building", ours=took, reference=built[flat][1], unit="s")
        add("index", f"{name}: wiki-18, planned", ours=wiki[search], reference=wiki[flat], unit="GiB")
    return result


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, default=100_000)
    parser.add_argument("--dimensions", type=int, default=E5_DIMENSIONS)
    parser.add_argument("--queries", type=int, default=1000)
    add_options(parser)
    arguments = parser.parse_args()
    began = time.process_time()
    case = make_case(arguments.passages, arguments.queries, arguments.dimensions)
    result = measure(case)
    size = f"{arguments.passages:,} passages, {arguments.dimensions} dimensions"
    result.notes = [
        f"{size}, {arguments.queries:,} queries for {TOPK} passages each, one thread.",
        "Hashed embeddings of made-up words have little of the structure that cells and graphs use; E5's was not measured.",
        f"wiki-18: {WIKI_PASSAGES:,} passages, {E5_DIMENSIONS} dimensions, planned and not measured.",
        f"All of it took {(time.process_time() - began) / 60:.1f} CPU-minutes.",
    ]
    finish(result, arguments)


if __name__ == "__main__":
    main()
