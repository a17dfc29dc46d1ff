"""A scripted engine: a server that answers every request with the same reply, at a given pace.

    python -m gateway_bench.engine SCRIPT.json          prints its port

It speaks what vime's TokenClient and the training client of verifiers ask of vLLM (`/inference/v1/generate`, streamed and whole)
and OpenAI's Chat Completions, so that every gateway can use it. `POST /pace` sets how long a reply takes; `POST /log` returns,
and forgets, when each request came and went by the machine's monotonic clock.
"""

import asyncio
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

import orjson
import uvloop
from aiohttp import web

from gateway_bench.script import MODEL, Script, call

MOST_BODY_BYTES = 64 * 2**20
CHAT_INTERVAL = 1
"""Tokens that Chat Completions streams at a time, as vLLM's server does by default."""
VISIBLE = 2
"""Tokens up to the first one that has a text: the first begins the reasoning."""


class Engine:
    """The state of the server: its script, its pace, and its log."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._seconds = 0.0
        self._log: list[dict[str, float]] = []
        self._numbers = itertools.count()
        self._events: dict[int, list[tuple[int, bytes]]] = {}
        """Events of a stream by its interval: the number of tokens sent up to each event, and its bytes."""

    async def generate(self, http: web.Request) -> web.StreamResponse:
        """Token ids in, token ids and logprobs out."""
        came = time.monotonic()
        body = orjson.loads(await http.read())
        assert body["token_ids"], "an empty prompt"
        if body.get("stream"):
            interval = body["sampling_params"].get("stream_interval", 1)
            return await self._stream(http, came, self._token_events(interval))
        await asyncio.sleep(self._seconds)
        choice = _choice(self._script.ids, reason="stop")
        return await self._whole(http, came, {"request_id": f"g{next(self._numbers)}", "choices": [choice]})

    async def chat(self, http: web.Request) -> web.StreamResponse:
        """Chat Completions."""
        came = time.monotonic()
        body = orjson.loads(await http.read())
        assert body["messages"], "no messages"
        name, script = f"chatcmpl-{next(self._numbers)}", self._script
        head = {"id": name, "created": int(time.time()), "model": MODEL}
        if body.get("stream"):
            return await self._stream(http, came, self._chat_events({**head, "object": "chat.completion.chunk"}))
        await asyncio.sleep(self._seconds)
        message = {**script.message, "tool_calls": [call(f"call_{name}")]}
        num = len(script.ids)
        usage = {"prompt_tokens": 1, "completion_tokens": num, "total_tokens": num + 1}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls", "logprobs": None}
        return await self._whole(http, came, {**head, "object": "chat.completion", "choices": [choice], "usage": usage})

    async def pace(self, http: web.Request) -> web.Response:
        """Sets how many seconds a reply takes from its request to its last token."""
        self._seconds = float((await http.json())["seconds"])
        return web.Response()

    async def log(self, _: web.Request) -> web.Response:
        """Times when each request came, its first text went and its last token, in seconds of the monotonic clock."""
        found, self._log = self._log, []
        return web.Response(body=orjson.dumps(found), content_type="application/json")

    async def models(self, _: web.Request) -> web.Response:
        """The one model."""
        return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model", "max_model_len": 1_000_000}]})

    async def _whole(self, http: web.Request, came: float, body: dict[str, Any]) -> web.Response:
        response = web.Response(body=orjson.dumps(body), content_type="application/json")
        await response.prepare(http)
        await response.write_eof()
        self._log.append({"came": came, "last": time.monotonic()})
        return response

    async def _stream(self, http: web.Request, came: float, events: list[tuple[int, bytes]]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(http)
        per_token, first = self._seconds / len(self._script.ids), 0.0
        for said, data in events:
            if (wait := came + per_token * said - time.monotonic()) > 0:
                await asyncio.sleep(wait)
            if said >= VISIBLE:
                first = first or time.monotonic()
            await response.write(data)
        last = time.monotonic()
        await response.write_eof(b"data: [DONE]\n\n")
        self._log.append({"came": came, "first": first, "last": last})
        return response

    def _token_events(self, interval: int) -> list[tuple[int, bytes]]:
        """The first token at once, then `interval` tokens at a time, as vLLM sends them."""
        if interval not in self._events:
            ids, found = self._script.ids, []
            for start, end in _pieces(len(ids), interval):
                choice = _choice(ids[start:end], start, "stop" if end == len(ids) else None)
                found.append((end, _event({"request_id": "g", "choices": [choice]})))
            self._events[interval] = found
        return self._events[interval]

    def _chat_events(self, head: dict[str, Any]) -> list[tuple[int, bytes]]:
        texts = self._script.texts
        events = [
            (end, _chunk(head, {"content": "".join(texts[start:end])})) for start, end in _pieces(len(texts), CHAT_INTERVAL)
        ]
        return [*events, (len(texts), _chunk(head, {}, finish_reason="stop"))]


def _pieces(num_tokens: int, interval: int) -> list[tuple[int, int]]:
    ends = sorted({*range(1, num_tokens, interval), num_tokens})
    return list(zip([0, *ends], ends))


def _choice(ids: list[int], start: int = 0, reason: str | None = None) -> dict[str, Any]:
    same = {"logprob": -0.5, "rank": 1, "top_logprobs": []}  # verifiers reads tokens by the name that vLLM gave them earlier
    content = [{"token_id": token, "token": f"token_id:{token}", **same} for token in ids]
    versions = [{"version": "1", "start": start, "end": start + len(ids)}]
    return {"index": 0, "token_ids": ids, "finish_reason": reason, "logprobs": {"content": content}, "weight_versions": versions}


def _chunk(head: dict[str, Any], delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
    return _event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]})


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(body) + b"\n\n"


async def serve(script: Script) -> None:
    """Listens until the process is ended."""
    engine, app = Engine(script), web.Application(client_max_size=MOST_BODY_BYTES)
    app.router.add_post("/inference/v1/generate", engine.generate)
    app.router.add_post("/v1/chat/completions", engine.chat)
    app.router.add_get("/v1/models", engine.models)
    app.router.add_post("/pace", engine.pace)
    app.router.add_post("/log", engine.log)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=2048).start()
    sys.stdout.write(f"{runner.addresses[0][1]}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(Script(**json.loads(Path(sys.argv[1]).read_text()))))
