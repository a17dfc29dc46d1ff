"""Builds the index of a corpus, or serves the corpus, for which it builds the index first if there is none.

python -m vime.retrieval build corpus.jsonl --index-folder indexes/wiki --backend faiss
python -m vime.retrieval serve corpus.jsonl --index-folder indexes/wiki --backend faiss --port 8100
"""

import argparse
import asyncio
import dataclasses
import logging
import signal
import sys
import time
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Any, get_type_hints

from aiohttp import web
from rich.console import Console
from rich.progress import Progress as Bars
from rich.progress import TaskID

from vime.cluster.ports import BACKLOG
from vime.config import RetrievalConfig
from vime.errors import ConfigError
from vime.processes.secret import VARIABLE, given_secret, is_loopback
from vime.retrieval.index import open_index
from vime.retrieval.service import RetrievalService
from vime.surroundings import settle

OPTIONS = (
    *("backend", "search", "embedding", "embedding_url", "embedding_dimensions", "pooling", "query_instruction"),
    *("passage_instruction", "topk", "num_threads", "port"),
)
"""Settings of `RetrievalConfig` that are options here, with the same defaults."""
LOG_SECONDS = 5.0
"""Interval of progress lines without a terminal, which would show a bar."""

logger = logging.getLogger("vime.retrieval")


class ProgressBars:
    """ReportProgress of the build: a bar per phase on a terminal, else a line every few seconds."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bars = Bars(console=self._console, disable=not self._console.is_terminal)
        self._tasks: dict[str, TaskID] = {}
        self._last = 0.0

    def __enter__(self) -> "ProgressBars":
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.stop()

    def note(self, phase: str, done: int, total: int) -> None:
        """Shows the progress of a phase (`vime.retrieval.corpus.ReportProgress`)."""
        if phase not in self._tasks:
            self._tasks[phase] = self._bars.add_task(phase, total=total)
        self._bars.update(self._tasks[phase], completed=done)
        if not self._console.is_terminal and (done == total or time.monotonic() > self._last + LOG_SECONDS):
            self._last = time.monotonic()
            logger.info("%s: %d of %d passages", phase, done, total)


def main(words: Sequence[str] | None = None) -> int:
    """Builds or serves; returns the exit code, 2 for an error that the caller can correct."""
    settle()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    for library in ("faiss", "bm25s"):  # they tell what they do in detail
        logging.getLogger(library).setLevel(logging.WARNING)
    arguments = vars(_parser().parse_args(words))
    action, host, folder = arguments.pop("action"), arguments.pop("host"), Path(arguments.pop("index_folder"))
    config = RetrievalConfig(index_folder=str(folder), **arguments)
    with ProgressBars() as bars:
        if action == "serve":
            if (secret := given_secret()) is None and not is_loopback(host):
                logger.error("other machines reach %s: set the environment variable %s, here and for its clients", host, VARIABLE)
                return 2
            return asyncio.run(_serve(RetrievalService(config, folder, bars.note, secret=secret), host, config.port))
        try:
            index = open_index(config, folder, bars.note)
        except ConfigError as error:
            logger.error("%s", error)
            return 2
    logger.info("%d passages are indexed in %s", len(index.corpus), folder)
    return 0


async def _serve(service: RetrievalService, host: str, port: int) -> int:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    runner = web.AppRunner(service.application(), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, backlog=BACKLOG).start()
        logger.info("listening on http://%s:%d", host, port)
        waiting = [asyncio.create_task(event.wait()) for event in (stopped, service.failed)]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    except OSError as error:
        logger.error("cannot listen on %s:%d: %s", host, port, error)
        return 2
    finally:
        await runner.cleanup()
    return 2 if service.failed.is_set() else 0


def _parser() -> argparse.ArgumentParser:
    """The parser, whose options are fields of `RetrievalConfig`."""
    parser = argparse.ArgumentParser(prog="python -m vime.retrieval", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("action", choices=["build", "serve"])
    parser.add_argument("corpus", help='JSONL file with {"id", "title", "text"} on each line')
    parser.add_argument("--index-folder", required=True, help="folder of the index, which is built there if it does not exist")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    hints = get_type_hints(RetrievalConfig)
    for field in dataclasses.fields(RetrievalConfig):
        if field.name not in OPTIONS:
            continue
        kind, default = hints[field.name], field.default
        options: dict[str, Any] = {"default": default, "help": "(default %(default)s)"}
        if isinstance(default, Enum):
            choices = ", ".join(str(choice.value) for choice in type(default))
            options = {"default": default, "type": kind, "metavar": f"{{{choices}}}", "help": f"(default {default.value})"}
        elif isinstance(default, int):
            options["type"] = int
        parser.add_argument(f"--{field.name.replace('_', '-')}", **options)
    return parser


def command(config: RetrievalConfig, *, host: str, port: str, index_folder: str) -> list[str]:
    """The command line that serves a configuration, with `port` unchanged."""
    words = [sys.executable, "-m", "vime.retrieval", "serve", str(config.corpus), "--index-folder", index_folder, "--host", host]
    for name in OPTIONS:
        value = getattr(config, name)
        if name == "port":
            words += ["--port", port]
        elif value is not None:
            words.append(f"--{name.replace('_', '-')}={value.value if isinstance(value, Enum) else value}")
    return words


if __name__ == "__main__":
    sys.exit(main())
