"""The web application: POST /retrieve and GET /health, which answers 503 while the index is being built."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

from aiohttp import web

from vime.config import RetrievalConfig
from vime.errors import ServerError
from vime.processes.secret import is_authorized
from vime.retrieval.batching import QueryBatcher
from vime.retrieval.corpus import ReportProgress
from vime.retrieval.index import open_index
from vime.tasks import cancel

logger = logging.getLogger(__name__)

MAX_QUERIES = 1024
MAX_QUERY_CHARACTERS = 20_000
MAX_TOPK = 1000
MAX_BODY_BYTES = 32 * 2**20


class BadQuery(ValueError):
    """A request that is not valid; the text says why."""


class RetrievalService:
    """One index behind HTTP."""

    def __init__(self, config: RetrievalConfig, folder: Path, progress: ReportProgress, *, secret: str | None = None) -> None:
        self.failed = asyncio.Event()
        """Set when the index cannot be opened, so that there is nothing to serve."""
        self._config, self._folder, self._progress = config, folder, progress
        self._secret = secret
        self._batcher: QueryBatcher | None = None
        self._opening: asyncio.Task[None] | None = None
        self._state: dict[str, Any] = {"status": "building", "phase": "reading", "done": 0, "total": 0}

    def application(self) -> web.Application:
        """The web application; the index is opened when it starts."""
        application = web.Application(client_max_size=MAX_BODY_BYTES)
        application.router.add_get("/health", self.health)
        application.router.add_post("/retrieve", self.retrieve)
        application.on_startup.append(self._start)
        application.on_cleanup.append(self._stop)
        return application

    async def health(self, request: web.Request) -> web.Response:
        """200 with the number of passages, or 503 with the progress while the index is being built."""
        if self._batcher is None:
            return web.json_response(self._state, status=503)
        counts = {"num_queries": self._batcher.num_queries, "num_batches": self._batcher.num_batches}
        return web.json_response(self._state | counts)

    async def retrieve(self, request: web.Request) -> web.Response:
        """`{"queries": [str], "topk": int, "return_scores": bool}` to `{"result": [[{"document": …, "score": …}]]}`."""
        if self._secret is not None and not is_authorized(request.headers.get("Authorization", ""), self._secret):
            return web.json_response({"error": "this service answers only requests with its secret"}, status=401)
        if self._batcher is None:
            return web.json_response({"error": "the index is being built"}, status=503)
        try:
            queries, topk, with_scores = read_query(await request.read(), default_topk=self._config.topk)
        except BadQuery as error:
            return web.json_response({"error": str(error)}, status=400)
        try:
            found = await self._batcher.search(queries, topk)
        except ServerError as error:  # the model that embeds is not there now
            return web.json_response({"error": str(error)}, status=503)
        result = [
            [{"document": document.as_json()} | ({"score": score} if with_scores else {}) for document, score in passages]
            for passages in found
        ]
        return web.json_response({"result": result})

    async def _start(self, application: web.Application) -> None:
        self._opening = asyncio.create_task(self._open())

    async def _open(self) -> None:
        try:
            index = await asyncio.to_thread(open_index, self._config, self._folder, self._note)
        except Exception as error:  # the boundary of the program: whatever it is, the process ends and its log says why
            logger.error("the index cannot be opened: %s", error, exc_info=not isinstance(error, (ServerError, ValueError)))
            self.failed.set()
            return
        self._batcher = QueryBatcher(index)
        self._state = {"status": "ready", "backend": self._config.backend.value, "num_documents": len(index.corpus)}
        logger.info("%d passages of %s are served", len(index.corpus), self._config.corpus)

    async def _stop(self, application: web.Application) -> None:
        await cancel([self._opening] if self._opening is not None else [])
        if self._batcher is not None:
            await self._batcher.close()

    def _note(self, phase: str, done: int, total: int) -> None:
        """Takes the progress of the build, from the thread that builds."""
        self._state = {"status": "building", "phase": phase, "done": done, "total": total}
        self._progress(phase, done, total)


def read_query(body: bytes, *, default_topk: int) -> tuple[list[str], int, bool]:
    """The fields of a request: queries, passages per query, and whether scores are wanted. Raises BadQuery."""
    try:
        row: Any = json.loads(body)
    except (ValueError, RecursionError):
        raise BadQuery("the body is not JSON") from None
    if not isinstance(row, dict):
        raise BadQuery('the body is not an object: give {"queries": [...], "topk": 5}')
    if unknown := sorted(set(row) - {"queries", "topk", "return_scores"}):
        raise BadQuery(f"unknown fields: {', '.join(unknown)[:200]}")
    queries, topk, with_scores = row.get("queries"), row.get("topk"), row.get("return_scores", True)
    if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
        raise BadQuery("queries is not a list of texts")
    if not 1 <= len(queries) <= MAX_QUERIES:
        raise BadQuery(f"{len(queries)} queries: give 1 to {MAX_QUERIES}")
    if not all(query.strip() for query in queries):
        raise BadQuery("a query is empty")
    if max(map(len, queries)) > MAX_QUERY_CHARACTERS:
        raise BadQuery(f"a query is longer than {MAX_QUERY_CHARACTERS} characters")
    topk = default_topk if topk is None else topk
    if isinstance(topk, bool) or not isinstance(topk, int) or not 1 <= topk <= MAX_TOPK:
        raise BadQuery(f"topk is not a whole number from 1 to {MAX_TOPK}")
    if not isinstance(with_scores, bool):
        raise BadQuery("return_scores is neither true nor false")
    return queries, topk, with_scores
