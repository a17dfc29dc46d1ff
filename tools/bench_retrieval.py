"""Queries a second that the retrieval service answers over HTTP, the time that its index takes, and its share of the results of
exact search.

    python tools/bench_retrieval.py [--passages 10000] [--seconds 5] [--clients 16] [--backends bm25 …] [--json PATH]

The corpus is made up: sixty words a passage, drawn by Zipf's law from 20,000; a query is six words of one passage. The service is
a process of its own (`python -m vime.retrieval serve`), the clients share one. The reference of recall is FAISS's exact search.
"""

import argparse
import asyncio
import itertools
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp

from vime.cluster.ports import free_port

BACKENDS = {
    "bm25": ["--backend=bm25"],
    "faiss flat": ["--backend=faiss", "--search=flat"],
    "faiss ivf": ["--backend=faiss", "--search=ivf"],
    "faiss hnsw": ["--backend=faiss", "--search=hnsw"],
}
TOPK = 5
NUM_RECALL_QUERIES = 200
AIM_PER_SECOND = 200.0


def write_corpus(path: Path, num_passages: int) -> list[str]:
    """Writes the passages and returns a query for each."""
    rng = random.Random(0)
    words = ["".join(rng.choice("bdfgklmnprst") + rng.choice("aeiou") for _ in range(rng.randint(2, 4))) for _ in range(20_000)]
    weights = list(itertools.accumulate(1 / (rank + 10) for rank in range(len(words))))
    queries = []
    with path.open("w") as file:
        for number in range(num_passages):
            text = rng.choices(words, cum_weights=weights, k=60)
            file.write(json.dumps({"id": str(number), "title": "", "text": " ".join(text)}) + "\n")
            queries.append(" ".join(rng.sample(text, 6)))
    rng.shuffle(queries)
    return queries


async def measure(
    corpus: Path, folder: Path, options: list[str], queries: list[str], seconds: float, clients: int
) -> dict[str, Any]:
    """Seconds to the first and to the second start, queries per second, and the results of the first queries."""
    port = free_port("127.0.0.1", 0)
    words = [sys.executable, "-m", "vime.retrieval", "serve", str(corpus), f"--index-folder={folder}", f"--port={port}"]
    result: dict[str, Any] = {}
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        for start in ("build", "restart"):
            began = time.monotonic()
            service = subprocess.Popen([*words, *options], stderr=subprocess.DEVNULL)
            try:
                await until_ready(session, service)
                result[start] = time.monotonic() - began
                if start == "restart":
                    result["found"] = [await ask(session, query) for query in queries[:NUM_RECALL_QUERIES]]
                    result["per_second"] = await throughput(session, queries, seconds, clients)
            finally:
                service.terminate()
                service.wait()
    return result


async def until_ready(session: aiohttp.ClientSession, service: "subprocess.Popen[bytes]") -> None:
    """Waits until the service is well; it must not end before."""
    while True:
        assert service.poll() is None, f"the service ended with {service.returncode}"
        try:
            async with session.get("/health") as response:
                if response.status == 200:
                    return
        except aiohttp.ClientError:
            pass
        await asyncio.sleep(0.05)


async def ask(session: aiohttp.ClientSession, query: str) -> set[str]:
    """The ids that a query finds."""
    async with session.post("/retrieve", json={"queries": [query], "topk": TOPK}) as response:
        assert response.status == 200, await response.text()
        return {passage["document"]["id"] for passage in (await response.json())["result"][0]}


async def throughput(session: aiohttp.ClientSession, queries: list[str], seconds: float, clients: int) -> float:
    """Queries per second with `clients` clients that each send one query after the other."""
    deadline, counts = time.monotonic() + seconds, [0] * clients

    async def work(number: int) -> None:
        while time.monotonic() < deadline:
            await ask(session, queries[(number + counts[number] * clients) % len(queries)])
            counts[number] += 1

    began = time.monotonic()
    await asyncio.gather(*[work(number) for number in range(clients)])
    return sum(counts) / (time.monotonic() - began)


def rows_of(results: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """`{benchmark, case, ours, reference, ratio, unit}` for each number."""
    exact, rows = results.get("faiss flat", {}).get("found"), []
    for name, result in results.items():
        shared = [len(ours & best) / len(best) for ours, best in zip(result["found"], exact or []) if best]
        values = {"queries": (result["per_second"], AIM_PER_SECOND, "queries/s")}
        values |= {"restart": (result["restart"], result["build"], "s")}
        if name.startswith("faiss") and shared:
            values |= {"recall": (sum(shared) / len(shared), 1.0, f"share of the best {TOPK}")}
        for case, (ours, reference, unit) in values.items():
            row = {"benchmark": "retrieval", "case": f"{name}: {case}", "ours": ours, "reference": reference}
            rows.append(row | {"ratio": ours / reference, "unit": unit})
    return rows


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passages", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--backends", nargs="+", choices=list(BACKENDS), default=list(BACKENDS), help="recall needs faiss flat")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "passages.jsonl"
        queries = write_corpus(corpus, arguments.passages)
        for name in arguments.backends:
            options = BACKENDS[name]
            index = Path(folder) / name.replace(" ", "-")
            results[name] = asyncio.run(measure(corpus, index, options, queries, arguments.seconds, arguments.clients))
    rows = rows_of(results)
    print(
        f"{arguments.passages} passages, {arguments.clients} clients; references: {AIM_PER_SECOND:g} queries/s, the first start"
    )
    for row in rows:
        print(f"{row['case']:24}{row['ours']:12.3f}{row['reference']:12.3f}{row['ratio']:9.2f}  {row['unit']}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
