"""The client of the retrieval service: `await context.retriever.search("who wrote the first program")`."""

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import aiohttp

from vime.config import RetrievalConfig
from vime.errors import ServerError, VimeError, describe
from vime.processes.secret import headers
from vime.serving.calls import Calls
from vime.serving.endpoint import Address, locate

NAME = "retrieval"
"""The name of the service in counts of calls and in metrics."""
FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.1, 2.0


class BadQueryError(VimeError, ValueError):
    """The service refuses these queries; sending them again would not help."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Passage:
    """A search result: one passage of the corpus with its score.

    Example: `Passage(id="17", title="Ada Lovelace", text="Ada Lovelace wrote …", score=8.3)`. A higher score is better; cosine
    similarities and BM25 scores are not comparable.
    """

    id: str
    title: str
    text: str
    score: float


class Retriever:
    """The client that hooks use; there is one per process and event loop."""

    def __init__(self, address: Address, config: RetrievalConfig) -> None:
        self.calls = Calls()
        self._address, self._config = address, config
        self.url = address.url
        self._http: aiohttp.ClientSession | None = None

    async def search(self, query: str, topk: int | None = None) -> list[Passage]:
        """The best passages for one query, at most `topk` (`retrieval.topk` by default)."""
        return (await self.search_many([query], topk))[0]

    async def search_many(self, queries: list[str], topk: int | None = None) -> list[list[Passage]]:
        """The best passages for each query.

        Raises BadQueryError if the service refuses (an empty query, a number out of range), ServerError if it gave no answer
        within `retrieval.request_timeout_seconds`.
        """
        started, backoff = time.monotonic(), FIRST_BACKOFF_SECONDS
        deadline = started + self._config.request_timeout_seconds
        body = {"queries": queries, "topk": self._config.topk if topk is None else topk, "return_scores": True}
        while True:
            reason = ""
            try:
                result = await self._ask(body, deadline - time.monotonic())
                self.calls.num_requests += 1
                self.calls.seconds += time.monotonic() - started
                return [[_passage(row) for row in rows] for rows in result]
            except (TimeoutError, aiohttp.ClientError, OSError, ServerError) as error:
                reason = describe(error)
            if time.monotonic() + backoff > deadline:
                self.calls.num_failures += 1
                limit = f"{self._config.request_timeout_seconds:g} s (retrieval.request_timeout_seconds)"
                raise ServerError(f"the retrieval service ({self.url}) gave no answer within {limit}; last: {reason}")
            await asyncio.sleep(backoff)
            backoff = min(2 * backoff, MAX_BACKOFF_SECONDS)
            self.calls.num_retries += 1
            self.url = await locate(self._address) or self.url

    async def close(self) -> None:
        """Closes the connections."""
        if self._http is not None:
            await self._http.close()
            self._http = None

    async def _ask(self, body: dict[str, Any], seconds: float) -> Any:
        if self._http is None:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=30)
            self._http = aiohttp.ClientSession(connector=connector, headers=headers(self._address.secret))
        timeout = aiohttp.ClientTimeout(total=max(0.1, seconds))
        async with self._http.post(f"{self.url}/retrieve", json=body, timeout=timeout) as response:
            if 400 <= response.status < 500:
                self.calls.num_failures += 1
                raise BadQueryError(f"the retrieval service refuses: {(await response.text())[:500]}")
            if response.status != 200:
                raise ServerError(f"status {response.status}: {(await response.text())[:500]}")
            return (await response.json())["result"]


def _passage(row: dict[str, Any]) -> Passage:
    document = row["document"]
    if "text" not in document:  # services of others: {"id", "contents": "\"Title\"\ntext"}
        title, _, text = str(document["contents"]).partition("\n")
        document = {"id": document.get("id", ""), "title": title.strip('"'), "text": text or title}
    return Passage(id=str(document["id"]), title=document["title"], text=document["text"], score=float(row.get("score", 0.0)))
