"""The service over HTTP: its contract, what it refuses, many requests at once, its health; and a served embedding model."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from vime.config import RetrievalBackend, RetrievalConfig
from vime.errors import ServerError
from vime.retrieval.__main__ import main
from vime.retrieval.batching import QueryBatcher
from vime.retrieval.retriever import BadQueryError, Retriever
from vime.retrieval.service import MAX_QUERIES, RetrievalService
from vime.serving.endpoint import Address

GOOD = {"queries": ["record 17", "record 18"], "topk": 3, "return_scores": True}


def silent(phase: str, done: int, total: int) -> None:
    """Discards reports of progress."""


async def until_ready(client: Any) -> dict[str, Any]:
    """The service's health once it is well."""
    while (answer := await client.get("/health")).status != 200:
        assert answer.status == 503 and (await answer.json())["status"] == "building"
        await asyncio.sleep(0.01)
    return await answer.json()


@pytest.fixture
async def client(corpus_file: Path, tmp_path: Path) -> AsyncIterator[Any]:
    config = RetrievalConfig(corpus=str(corpus_file), topk=4)
    async with TestClient(TestServer(RetrievalService(config, tmp_path / "index", silent).application())) as client:
        await until_ready(client)
        yield client


def address_of(client: Any) -> Address:
    """The address of a service under test."""
    return Address(url=str(client.make_url("/")).rstrip("/"))


async def test_the_contract(client: Any):
    answer = await client.post("/retrieve", json=GOOD)
    result = (await answer.json())["result"]
    assert [len(passages) for passages in result] == [3, 3]
    assert [passages[0]["document"]["id"] for passages in result] == ["p17", "p18"]
    assert set(result[0][0]) == {"document", "score"} and set(result[0][0]["document"]) == {"id", "title", "text"}
    assert all(isinstance(passage["score"], float) for passage in result[0])
    without = (await (await client.post("/retrieve", json=GOOD | {"return_scores": False})).json())["result"]
    assert set(without[0][0]) == {"document"}
    default = (await (await client.post("/retrieve", json={"queries": ["record"]})).json())["result"]
    assert len(default[0]) == 4


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"not json", 400),
        (b"\xff\xfe\x00", 400),
        (b"[" * 200_000, 400),
        (b"[]", 400),
        (b"null", 400),
        (b"{}", 400),
        (b'{"queries": "one text"}', 400),
        (b'{"queries": []}', 400),
        (b'{"queries": [1]}', 400),
        (b'{"queries": [null]}', 400),
        (b'{"queries": ["  "]}', 400),
        (b'{"queries": ["a"], "topk": 0}', 400),
        (b'{"queries": ["a"], "topk": -1}', 400),
        (b'{"queries": ["a"], "topk": 1e3}', 400),
        (b'{"queries": ["a"], "topk": NaN}', 400),
        (b'{"queries": ["a"], "topk": true}', 400),
        (b'{"queries": ["a"], "topk": 99999999999999999999}', 400),
        (b'{"queries": ["a"], "return_scores": "yes"}', 400),
        (b'{"queries": ["a"], "k": 3}', 400),
        (json.dumps({"queries": ["a"] * (MAX_QUERIES + 1)}).encode(), 400),
        (json.dumps({"queries": ["a" * 30_000]}).encode(), 400),
        (b"x" * (33 * 2**20), 413),
    ],
)
async def test_what_is_no_query_is_refused_and_the_service_goes_on(client: Any, body: bytes, status: int):
    answer = await client.post("/retrieve", data=body, headers={"content-type": "application/json"})
    assert answer.status == status
    assert (await client.post("/retrieve", json=GOOD)).status == 200
    assert (await client.get("/health")).status == 200


async def test_other_paths_and_methods_are_refused(client: Any):
    assert (await client.get("/retrieve")).status == 405
    assert (await client.post("/nowhere", json=GOOD)).status == 404


async def test_strange_texts_are_queries_too(client: Any):
    for text in ("\\ud800", "\\u0000", "🙂", "' OR 1=1"):
        answer = await client.post("/retrieve", data=b'{"queries": ["%s"]}' % text.encode())
        assert answer.status == 200, text


async def test_many_requests_at_once_share_searches_and_each_gets_its_own(client: Any):
    async def ask(number: int) -> str:
        body = {"queries": [f"record {number}", "record"], "topk": 1 + number % 5}
        result = (await (await client.post("/retrieve", json=body)).json())["result"]
        assert len(result) == 2 and len(result[0]) <= 1 + number % 5
        return result[0][0]["document"]["id"]

    assert await asyncio.gather(*[ask(number) for number in range(200)]) == [f"p{number}" for number in range(200)]
    state = await (await client.get("/health")).json()
    assert state["num_queries"] == 400
    assert state["num_batches"] < 200


async def test_the_service_says_how_far_it_is_and_answers_503_until_then(corpus_file: Path, tmp_path: Path):
    config = RetrievalConfig(corpus=str(corpus_file), backend=RetrievalBackend.faiss)
    async with TestClient(TestServer(RetrievalService(config, tmp_path / "index", silent).application())) as client:
        assert (await client.post("/retrieve", json=GOOD)).status == 503
        state = await until_ready(client)
        assert state == {"status": "ready", "backend": "faiss", "num_documents": 400, "num_queries": 0, "num_batches": 0}


async def test_a_search_that_fails_costs_its_requests_only():
    class Breaks:
        fails = True

        def search(self, queries: list[str], topk: int) -> list[Any]:
            if self.fails:
                raise ServerError("the model is away")
            return [[] for _ in queries]

    index: Any = Breaks()
    batcher = QueryBatcher(index)
    with pytest.raises(ServerError, match="away"):
        await batcher.search(["a"], 1)
    index.fails = False
    assert await batcher.search(["a", "b"], 1) == [[], []]
    await batcher.close()


async def test_the_client_reads_passages_and_counts(client: Any):
    retriever = Retriever(address_of(client), RetrievalConfig(topk=2))
    passages = await retriever.search("record 17")
    assert [passages[0].id, passages[0].title, len(passages)] == ["p17", "record 17", 2]
    assert [found[0].id for found in await retriever.search_many(["record 3", "record 4"], topk=1)] == ["p3", "p4"]
    with pytest.raises(BadQueryError, match="empty"):
        await retriever.search(" ")
    assert (retriever.calls.num_requests, retriever.calls.num_failures) == (2, 1)
    await retriever.close()


async def test_the_client_gives_a_dead_service_up_within_its_limit():
    retriever = Retriever(Address(url="http://127.0.0.1:9"), RetrievalConfig(request_timeout_seconds=0.5))
    with pytest.raises(ServerError, match="request_timeout_seconds"):
        await retriever.search("anything")
    assert retriever.calls.num_retries >= 1 and retriever.calls.num_failures == 1
    await retriever.close()


async def test_a_served_model_embeds_and_its_loss_is_a_503(corpus_file: Path, tmp_path: Path):
    asked: list[str] = []

    async def embeddings(request: web.Request) -> web.Response:
        body = await request.json()
        asked.extend(body["input"])
        rows = [[float(text.count(letter)) for letter in "abdefgiklmnoprstu0123456789"] for text in body["input"]]
        data = [{"index": index, "embedding": row} for index, row in reversed(list(enumerate(rows)))]
        return web.json_response({"data": data})

    application = web.Application()
    application.router.add_post("/v1/embeddings", embeddings)
    server = TestServer(application)
    await server.start_server()
    config = RetrievalConfig(
        corpus=str(corpus_file),
        backend=RetrievalBackend.faiss,
        embedding="letters",
        embedding_url=str(server.make_url("/v1")),
        query_instruction="find: ",
        passage_instruction="text: ",
    )
    async with TestClient(TestServer(RetrievalService(config, tmp_path / "index", silent).application())) as client:
        await until_ready(client)
        passage = json.loads(corpus_file.read_text().splitlines()[33])
        query = f"{passage['title']}\n{passage['text']}"
        result = (await (await client.post("/retrieve", json={"queries": [query]})).json())["result"]
        assert result[0][0]["document"]["id"] == "p33"
        assert asked[-1] == f"find: {query}" and len(asked) == 401
        assert all(text.startswith("text: ") for text in asked[:-1])
        await server.close()
        assert (await client.post("/retrieve", json=GOOD)).status == 503
        assert (await client.get("/health")).status == 200


async def test_with_a_secret_the_service_answers_nothing_but_its_health_without_it(corpus_file: Path, tmp_path: Path):
    config = RetrievalConfig(corpus=str(corpus_file))
    application = RetrievalService(config, tmp_path / "index", silent, secret="the secret of a run").application()
    async with TestClient(TestServer(application)) as client:
        await until_ready(client)
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "the secret of a run"}):
            assert (await client.post("/retrieve", json=GOOD, headers=headers)).status == 401
        retriever = Retriever(replace(address_of(client), secret="the secret of a run"), config)
        assert len(await retriever.search("record 17")) == config.topk
        await retriever.close()


def test_a_service_of_its_own_is_not_opened_to_other_machines_without_a_secret(
    corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.delenv("VIME_SECRET", raising=False)
    words = ["serve", str(corpus_file), "--index-folder", str(tmp_path / "index"), "--host", "0.0.0.0"]
    assert main(words) == 2 and "VIME_SECRET" in caplog.text
