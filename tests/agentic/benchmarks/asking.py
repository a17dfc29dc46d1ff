"""Published files where they are at hand, and the score of a reply to a row."""

import asyncio
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentic.benchmarks.published import Benchmark, Source
from vime.config import RunConfig, SandboxConfig
from vime.environments.environment import Outcome, Reply, rows
from vime.rollout.context import Context

SHARED = [folder / "shared" / "data" for folder in Path(__file__).resolve().parents]
PLACES = [Path(os.environ["VIME_BENCHMARKS"]).expanduser()] if "VIME_BENCHMARKS" in os.environ else []
FOLDERS = [place for place in [*PLACES, *SHARED] if place.is_dir()]
CONFIG = RunConfig(sandbox=SandboxConfig(wall_seconds=60, cpu_seconds=20, output_characters=1_000_000))


def folder_with(source: Source) -> str:
    """The folder that has a published file; the test is skipped if none has it."""
    found = next((folder for folder in FOLDERS if any((folder / name).is_file() for name in source.files)), None)
    if found is None:
        pytest.skip(f"data not at hand ({source.files[0]}; VIME_BENCHMARKS names their folder): {source.get}")
    return str(found)


def written(folder: Path, name: str, items: Sequence[dict[str, Any]]) -> str:
    """A file of items, one a line; returns its folder."""
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("".join(f"{json.dumps(item)}\n" for item in items))
    return str(folder)


def rows_of(benchmark: Benchmark) -> list[dict[str, Any]]:
    """All rows, as they come out of a file of rows."""
    return json.loads(json.dumps(list(benchmark.rows(split="eval", num_items=None, seed=0))))


def scores(benchmark: Any, asked: Sequence[dict[str, Any]], said: Callable[[dict[str, Any]], str | Reply]) -> list[Outcome]:
    """The outcomes of the replies that `said` gives to rows, all at a time."""
    context = Context(config=CONFIG, evaluation=True, session_id="one")

    async def one(row: dict[str, Any]) -> Outcome:
        episode = benchmark.open(row, context)
        assert episode.observe() is not None
        reply = said(row)
        await episode.act(Reply(seat="agent", text=reply) if isinstance(reply, str) else reply)
        assert episode.observe() is None
        return episode.outcome()

    async def every() -> list[Outcome]:
        return list(await asyncio.gather(*[one(row) for row in asked]))

    return asyncio.run(every())


def rewards(benchmark: Any, asked: Sequence[dict[str, Any]], said: Callable[[dict[str, Any]], str | Reply]) -> list[Any]:
    """The rewards of these replies."""
    return [outcome.rewards for outcome in scores(benchmark, asked, said)]


def generated(environment: str, num_items: int | None, **settings: Any) -> list[dict[str, Any]]:
    """The rows as a run makes them."""
    return rows(num_items, 0, environment=environment, settings=settings, split="eval")  # type: ignore[arg-type]
