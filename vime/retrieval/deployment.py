"""The retrieval service as a part of a run: a program that is started, watched, started again and stopped like the servers."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp

from vime.cluster.nodes import Nodes
from vime.cluster.placement import Place
from vime.config import RetrievalConfig, RunConfig
from vime.errors import ServerError
from vime.files.jsonl import write_lines
from vime.hooks import load_hook
from vime.processes.kept import START_MARGIN_SECONDS, KeptProgram, program_spec
from vime.processes.program import LISTEN, PORT
from vime.processes.secret import given_secret, run_secret
from vime.retrieval.__main__ import command
from vime.retrieval.retriever import NAME
from vime.serving.endpoint import Address
from vime.tasks import cancel

CORPUS = "passages.jsonl"
"""Generated passages, in the run folder."""
PROGRESS_SECONDS = 2.0


class Retrieval:
    """The retrieval service of a run, on its first node, or the one at `retrieval.url`, which is not started here."""

    def __init__(self, config: RunConfig, run_dir: Path, run_id: str, nodes: Nodes) -> None:
        self._config, self._run_dir, self._run_id, self._nodes = config, run_dir, run_id, nodes
        self._secret = run_secret(config.cluster.host) if config.retrieval.url is None else given_secret()
        self._program: KeptProgram | None = None

    def start(self) -> None:
        """Launches the service and returns at once; raises ServerError if its port is in use."""
        if self._config.retrieval.url is not None:
            return
        place, limit = Place(node=0), self._config.retrieval.start_timeout_seconds
        spec = program_spec(
            NAME,
            self._command(),
            port=self._nodes.take_port(place.node, self._config.retrieval.port, "retrieval.port"),
            place=place,
            nodes=self._nodes,
            run_dir=self._run_dir,
            secret=self._secret,
            settings=replace(self._config.serving, start_timeout_seconds=limit, max_start_seconds=limit),
        )
        self._program = KeptProgram(spec, place=place, nodes=self._nodes, run_id=self._run_id)
        self._program.create_actor()
        self._program.launch()

    async def ready(self, on_progress: Callable[[str], None]) -> None:
        """Waits until the index is there and the service answers; raises ServerError with the log's end if it does not."""
        limit = self._config.retrieval.start_timeout_seconds + START_MARGIN_SECONDS
        showing = asyncio.create_task(self._show(on_progress))
        try:
            if self._program is not None:
                await self._program.ready(limit)
            else:
                await asyncio.wait_for(self._answers(), limit)
        except TimeoutError:
            raise ServerError(f"no retrieval service answers at {self.address().url}") from None
        finally:
            await cancel([showing])

    async def watch(self) -> None:
        """Makes a lost actor again, until it is cancelled."""
        if self._program is not None:
            await self._program.watch()

    def address(self) -> Address:
        """The service's present address."""
        if self._program is None:
            return Address(url=str(self._config.retrieval.url).rstrip("/"), secret=self._secret)
        return Address(url=self._program.url, actor_name=self._program.actor_name, secret=self._secret)

    async def events(self) -> list[dict[str, Any]]:
        """The faults since the last call, oldest first. Raises ServerError if the service was given up."""
        events = await self._program.events() if self._program is not None else []
        if lost := next((event for event in events if event["event"] == "gave_up"), None):
            raise ServerError(f"the retrieval service was given up: {lost['detail']}; see {self._run_dir / 'logs'}")
        return events

    async def stop(self) -> None:
        """Ends the service."""
        if self._program is not None:
            await self._program.stop()

    def _command(self) -> list[str]:
        retrieval = with_corpus(self._config.retrieval, self._run_dir)
        folder = retrieval.index_folder or str((self._run_dir / NAME).resolve())
        return command(retrieval, host=LISTEN, port=PORT, index_folder=folder)

    async def _show(self, on_progress: Callable[[str], None]) -> None:
        """Reports the progress of the index."""
        async with aiohttp.ClientSession() as http:
            while True:
                await asyncio.sleep(PROGRESS_SECONDS)
                state = await _health(http, self.address().url)
                if state is not None and state.get("status") == "building":
                    on_progress(f"retrieval: {state['phase']}, {state['done']:,} of {state['total']:,} passages")

    async def _answers(self) -> None:
        async with aiohttp.ClientSession() as http:
            while (state := await _health(http, self.address().url)) is None or state.get("status") == "building":
                await asyncio.sleep(PROGRESS_SECONDS)


def with_corpus(retrieval: RetrievalConfig, run_dir: Path) -> RetrievalConfig:
    """The settings with a corpus that is a file: generated passages are written to the run folder first."""
    if retrieval.generator is None:
        return retrieval
    corpus = run_dir / CORPUS
    write_lines(corpus, load_hook(retrieval.generator)())
    return replace(retrieval, corpus=str(corpus.resolve()))


async def _health(http: aiohttp.ClientSession, url: str) -> dict[str, Any] | None:
    """The state that the service reports; None if it does not answer, empty if it answers something else."""
    try:
        async with http.get(f"{url}/health", timeout=aiohttp.ClientTimeout(total=PROGRESS_SECONDS)) as response:
            state = await response.json(content_type=None) if response.status in (200, 503) else None
            return state if isinstance(state, dict) else {} if response.status == 200 else None
    except (TimeoutError, aiohttp.ClientError, OSError, ValueError):
        return None
