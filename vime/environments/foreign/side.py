"""The side of a bridge that runs in an environment's own Python: it needs the standard library alone (Python 3.9 or later).

    PYTHON side.py SOCKET ADAPTER SETTINGS

ADAPTER is `PATH.py:CLASS` or `MODULE:CLASS`; the class is made with the SETTINGS, a JSON object:

    class Sums:
        seats = ("agent",)                      # may be missing
        at_once = None                          # most episodes of this process at a time; may be missing

        def rows(self, seed): …                 # an iterable of JSON objects, as long as it likes
        async def run(self, row, seats): …      # a reward, or {"rewards": {SEAT: …}, "metrics": {…}, "end": "turn_limit"}

`seats[name]` has `base_url`, `anthropic_url`, `api_key`, `model` and `max_tokens`. `run` may also be a plain function, which then
has a thread. Each connection is one call: a line with what this environment is, the caller's line, and lines of answers. `run` is
cancelled when the caller closes the connection.
"""

import asyncio
import concurrent.futures
import importlib
import inspect
import json
import os
import sys
import traceback
import types

MOST_BYTES = 2**28
"""Longest line."""
MOST_THREADS = 256
MOST_WAITING = 4096
"""Connections that may wait until they are taken."""
END = object()


def made(adapter, settings):
    """The environment of an adapter."""
    path, _, name = adapter.rpartition(":")
    if path.endswith(".py"):
        sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
        path = os.path.basename(path)[: -len(".py")]
    return getattr(importlib.import_module(path), name)(**settings)


class Side:
    """Answers calls about one environment."""

    def __init__(self, environment):
        self.environment = environment
        self.threads = concurrent.futures.ThreadPoolExecutor(MOST_THREADS)
        seats = list(getattr(environment, "seats", ("agent",)))
        self.about = {"seats": seats, "at_once": getattr(environment, "at_once", None)}

    async def serve(self, reader, writer):
        """One connection."""
        try:
            await _say(writer, self.about)
            line = await reader.readline()
            if line:
                await self._until_gone(self._answer(json.loads(line), writer), reader)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _until_gone(self, work, reader):
        """Does the work, or cancels it once the caller has closed the connection."""
        work, gone = asyncio.ensure_future(work), asyncio.ensure_future(reader.read(1))
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        for task in (work, gone):
            task.cancel()
        await asyncio.gather(work, gone, return_exceptions=True)

    async def _answer(self, asked, writer):
        try:
            if asked["call"] == "rows":
                await self._rows(asked, writer)
                await _say(writer, {"end": True})
            else:
                await _say(writer, {"outcome": await self._run(asked)})
        except (ConnectionError, asyncio.CancelledError):
            raise
        except BaseException as error:  # whatever an adapter raises is the caller's to judge
            said = f"{type(error).__name__}: {error}"
            await _say(writer, {"error": said, "traceback": traceback.format_exc()})

    async def _rows(self, asked, writer):
        rows = iter(await self._called(self.environment.rows, asked["seed"]))
        while True:
            row = await self._threaded(next, rows, END)
            if row is END:
                return
            await _say(writer, {"row": row})

    async def _run(self, asked):
        seats = {name: types.SimpleNamespace(**about) for name, about in asked["seats"].items()}
        return await self._called(self.environment.run, asked["row"], seats)

    async def _called(self, function, *arguments):
        result = function(*arguments) if inspect.iscoroutinefunction(function) else self._threaded(function, *arguments)
        result = await result
        return await result if inspect.isawaitable(result) else result

    def _threaded(self, function, *arguments):
        return asyncio.get_running_loop().run_in_executor(self.threads, _raising, function, *arguments)


def _raising(function, *arguments):
    """The result of a call, whose StopIteration, with which no future can end, becomes a RuntimeError."""
    try:
        return function(*arguments)
    except StopIteration as raised:
        raise RuntimeError(f"StopIteration: {raised}") from raised


async def _say(writer, message):
    writer.write(json.dumps(message, default=str).encode() + b"\n")
    await writer.drain()


async def main(path, adapter, settings):
    """Serves until the process is ended."""
    side = Side(made(adapter, json.loads(settings)))
    server = await asyncio.start_unix_server(side.serve, path, limit=MOST_BYTES, backlog=MOST_WAITING)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
