"""Searches in batches: the queries that arrive during one search make the next batch, so no batch waits to be filled."""

import asyncio
from dataclasses import dataclass

from vime.retrieval.corpus import Document
from vime.retrieval.index import Index
from vime.tasks import cancel

MAX_BATCH_QUERIES = 256

Passages = list[tuple[Document, float]]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Request:
    queries: list[str]
    topk: int
    answer: "asyncio.Future[list[Passages]]"


class QueryBatcher:
    """Runs the searches of one index in a thread, one batch after the other."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._requests: asyncio.Queue[_Request] = asyncio.Queue()
        self._working = asyncio.create_task(self._work())
        self.num_batches = self.num_queries = 0

    async def search(self, queries: list[str], topk: int) -> list[Passages]:
        """Passages per query, best first, at most `topk`; raises any error of the index."""
        answer: asyncio.Future[list[Passages]] = asyncio.get_running_loop().create_future()
        self._requests.put_nowait(_Request(queries=queries, topk=topk, answer=answer))
        return await answer

    async def close(self) -> None:
        """Ends the searches; requests that wait get no answer."""
        await cancel([self._working])

    async def _work(self) -> None:
        while True:
            batch = [await self._requests.get()]
            while not self._requests.empty() and sum(len(request.queries) for request in batch) < MAX_BATCH_QUERIES:
                batch.append(self._requests.get_nowait())
            queries = [query for request in batch for query in request.queries]
            try:
                found = await asyncio.to_thread(self._index.search, queries, max(request.topk for request in batch))
            except Exception as error:  # the boundary of a batch: its requests fail, the service goes on
                for request in batch:
                    if not request.answer.done():
                        request.answer.set_exception(error)
                continue
            self.num_batches += 1
            self.num_queries += len(queries)
            position = 0
            for request in batch:
                own = found[position : position + len(request.queries)]
                position += len(request.queries)
                if not request.answer.done():
                    request.answer.set_result([passages[: request.topk] for passages in own])
