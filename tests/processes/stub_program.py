"""A program that starts faster than vLLM: it answers every GET with 200, and every POST like a server that holds its weights."""

import asyncio
import sys
import textwrap
from pathlib import Path

import psutil

from vime.config import ServingConfig
from vime.processes.keeper import Keeper
from vime.processes.program import PORT, ProgramSpec
from vime.serving.server import Server

HEALTHY = """
    import http.server, sys, time
    print("starting", flush=True)
    time.sleep(float(sys.argv[2]) if len(sys.argv) > 2 else 0)
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
        def do_POST(self):
            print(self.path, flush=True)
            path = self.path.partition("?")[0]
            if f"hang {path}" in sys.argv:
                time.sleep(3600)
            self.send_response(500 if f"refuse {path}" in sys.argv else 200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            report = b'{"digest": "d", "num_tensors": 0, "pending": false, "is_loaded": false, '
            report += b'"wrong": [], "unread": [], "seconds": 0.0, "products_seconds": 0.0}'
            self.wfile.write(b'{"success": true, "results": [' + report + b"]}")
        def log_message(self, *arguments):
            pass
    http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def spec(
    port: int,
    folder: Path,
    *,
    start_seconds: float = 0.0,
    misbehaves: str = "",
    log: str | None = None,
    health_path: str = "/health",
    **changes,
) -> ProgramSpec:
    """The program; it `misbehaves` by `refuse /PATH` (status 500) or `hang /PATH`; changes are settings of `serving`."""
    settings = {"health_interval_seconds": 0.2, "health_failures": 2, "max_restarts": 2}
    return ProgramSpec(
        name="actor-0",
        address="127.0.0.1",
        port=port,
        command=[sys.executable, "-c", textwrap.dedent(HEALTHY), PORT, str(start_seconds), misbehaves],
        log=log or str(folder / "actor-0.log"),
        health_path=health_path,
        settings=ServingConfig(**(settings | changes)),
    )


def kill_program(launched: int) -> None:
    """Ends the program itself, not its supervisor."""
    psutil.Process(launched).children()[0].children()[0].kill()


async def next_launch(kept: Keeper | Server, old: int | None) -> int:
    """Waits for a launch other than `old`, and until the program is ready."""
    while (pid := await kept.pid()) == old or pid is None:
        await asyncio.sleep(0.05)
    await asyncio.wait_for(kept.ready(), 60)
    return pid


async def wait_for_events(kept: Keeper | Server, *wanted: str) -> list[str]:
    """The events until all wanted ones have occurred."""
    seen: list[str] = []
    for _ in range(600):
        seen += [event["event"] for event in await kept.events()]
        if set(wanted) <= set(seen):
            return seen
        await asyncio.sleep(0.1)
    raise AssertionError(f"waited for {wanted}, saw {seen}")
