"""A proxy in front of the training service that keeps the long calls of any client, so that they can be made again."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from aiohttp import web
from service_client import CREATES, SESSION, Recorded, Request, digest, read_answer, weights_of

PREFIX, LARGEST_BODY, POLL_SECONDS = "/api/v1/", 2**28, 120.0
HOP = {"host", "content-length", "content-encoding", "transfer-encoding", "connection"}
"""Headers that hold for one connection, or for a body as it was packed."""


class Recorder:
    """The calls of one session in the order of their arrival, with their answers.

    Calls without a seed get one, of their order: without it their answers could not be compared.
    """

    def __init__(self, url: str, http: aiohttp.ClientSession) -> None:
        self._url, self._http = url, http
        self._session = ""
        self._made: dict[str, Request] = {}
        self._answers: dict[str, str] = {}

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """The proxy's address, within the block."""
        app = web.Application(client_max_size=LARGEST_BODY)
        app.router.add_route("*", "/{path:.*}", self._pass)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()

    def recorded(self, folder: Path) -> Recorded:
        """The recipe, with the weights that it has saved in the `folder` of the service. Raises ValueError for a lost answer."""
        if missing := self._made.keys() - self._answers.keys():
            raise ValueError(f"{len(missing)} calls were never answered, {min(missing)} among them: record a recipe that waits")
        answers = [self._answers[id] for id in self._made]
        weights = weights_of(f"{self._session}:train:0", folder)
        return Recorded(requests=list(self._made.values()), answers=answers, weights=weights)

    async def _pass(self, request: web.Request) -> web.Response:
        path, body = request.path.removeprefix(PREFIX), await request.read()
        if path in (CREATES, "asample"):
            body = self._with_seed(path, body)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP}
        own = {"headers": headers, "data": body, "timeout": aiohttp.ClientTimeout(total=POLL_SECONDS)}
        try:
            async with self._http.request(request.method, self._url + request.path_qs, **own) as answer:
                data = await answer.read()
        except aiohttp.ClientConnectorError:
            return web.Response(status=503, text="the service has not started yet")
        if answer.status == 200:
            self._keep(path, body, read_answer(data, answer.content_type))
        return web.Response(status=answer.status, body=data, content_type=answer.content_type)

    def _keep(self, path: str, body: bytes, answer: Any) -> None:
        if path == "create_session":
            if self._session:
                raise ValueError("the client has opened a second session: record one whose calls are of a single session")
            self._session = answer["session_id"]
        elif path == "retrieve_future":
            self._answers[orjson.loads(body)["request_id"]] = digest(answer, self._session)
        elif "request_id" in answer:
            request = Request(route=path, body=body.replace(self._session.encode(), SESSION))
            self._made.setdefault(answer["request_id"], request)

    def _with_seed(self, path: str, body: bytes) -> bytes:
        fields = orjson.loads(body)
        part = fields.setdefault("lora_config" if path == CREATES else "sampling_params", {})
        if part.get("seed") is None:
            part["seed"] = 1 + 100 * len(self._made)
        return orjson.dumps(fields)
