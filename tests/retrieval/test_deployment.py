"""The service as a part of a run: started with its index, asked from a context, killed and back, stopped."""

import asyncio
import subprocess
import sys
import uuid
from pathlib import Path

import psutil
import pytest

from vime.cluster.nodes import Nodes
from vime.config import RetrievalConfig, RunConfig, ServingConfig
from vime.errors import ServerError
from vime.preflight.compose import compose_run
from vime.preflight.plan.models import serving
from vime.preflight.plan.planned_processes import placement_table
from vime.preflight.validation import find_problems
from vime.retrieval.deployment import Retrieval
from vime.retrieval.retriever import Retriever


def deployment(config: RunConfig, run_dir: Path) -> Retrieval:
    """A service on this machine."""
    nodes = Nodes(config)
    nodes.reserve()
    return Retrieval(config, run_dir, uuid.uuid4().hex[:8], nodes)


async def until(condition: str, retrieval: Retrieval) -> list[str]:
    """The events up to one of a kind."""
    events: list[str] = []
    while condition not in events:
        events += [event["event"] for event in await retrieval.events()]
        await asyncio.sleep(0.1)
    return events


async def test_a_killed_service_comes_back_with_its_index_and_searches_wait_for_it(
    corpus_file: Path, tmp_path: Path, ray_cluster: None
):
    config = RunConfig(
        retrieval=RetrievalConfig(corpus=str(corpus_file), request_timeout_seconds=60.0),
        serving=ServingConfig(health_interval_seconds=0.2, health_failures=3),
    )
    retrieval = deployment(config, tmp_path)
    retrieval.start()
    lines: list[str] = []
    try:
        await asyncio.wait_for(retrieval.ready(lines.append), 120)
        retriever = Retriever(retrieval.address(), config.retrieval)
        assert (await retriever.search("record 17"))[0].id == "p17"
        assert (tmp_path / "retrieval" / "manifest.json").exists()
        (service,) = [
            process
            for process in psutil.process_iter(["cmdline"])
            if "vime.retrieval" in (process.info["cmdline"] or [])
            and "vime.processes.launch" not in process.info["cmdline"]
            and str(tmp_path / "retrieval") in process.info["cmdline"]
        ]
        service.kill()
        assert (await retriever.search("record 18"))[0].id == "p18"
        assert await asyncio.wait_for(until("recovered", retrieval), 60) == ["died", "recovered"]
        assert "reading the index" in (tmp_path / "logs" / "retrieval.log").read_text()
        await retriever.close()
    finally:
        await retrieval.stop()
    with pytest.raises(ServerError):
        await Retriever(retrieval.address(), RetrievalConfig(request_timeout_seconds=0.3)).search("record 17")


async def test_a_corpus_that_cannot_be_read_ends_the_start_with_the_line(tmp_path: Path, ray_cluster: None):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"id": "1", "text": "fine"}\n{"id": "2"}\n')
    retrieval = deployment(RunConfig(retrieval=RetrievalConfig(corpus=str(corpus))), tmp_path)
    retrieval.start()
    try:
        with pytest.raises(ServerError, match="passage 2 cannot be read"):
            await asyncio.wait_for(retrieval.ready(lambda line: None), 120)
    finally:
        await retrieval.stop()


def test_the_program_builds_an_index_and_names_a_missing_corpus(corpus_file: Path, tmp_path: Path):
    words = [sys.executable, "-m", "vime.retrieval", "build"]
    folder = str(tmp_path / "index")
    built = subprocess.run([*words, str(corpus_file), "--index-folder", folder], capture_output=True, text=True, check=True)
    assert "400 passages are indexed" in built.stderr
    missing = subprocess.run([*words, "nowhere.jsonl", "--index-folder", folder], capture_output=True, text=True)
    assert missing.returncode == 2 and "there is no such file" in missing.stderr


def problems_of(*words: str) -> dict[str, str]:
    """Keys and remedies of what is wrong with a command line."""
    config = compose_run(["+method=memagent", *words]).config
    return {problem.key: problem.remedy for problem in find_problems(config)}


@pytest.mark.parametrize(
    ("word", "key", "remedy"),
    [
        ("retrieval.corpus=nowhere.jsonl", "retrieval.corpus", "no such file"),
        ("retrieval.port=80", "retrieval.port", "1024"),
        ("retrieval.topk=0", "retrieval.topk", "1 to 1000"),
        ("retrieval.num_threads=0", "retrieval.num_threads", "from 1 to 1024"),
        ("retrieval.url=nonsense", "retrieval.url", "http://host:port"),
        ("retrieval.embedding=some/model", "retrieval.embedding", "retrieval.backend=faiss"),
        ("retrieval.embedding_url=http://127.0.0.1:9", "retrieval.embedding_url", "name of the model"),
        ("retrieval.request_timeout_seconds=0", "retrieval.request_timeout_seconds", "more than 0"),
    ],
)
def test_wrong_settings_are_refused_before_anything_starts(word: str, key: str, remedy: str):
    assert remedy in problems_of(word)[key]


def test_ports_that_are_taken_are_refused(corpus_file: Path):
    import socket

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        found = problems_of(f"retrieval.corpus={corpus_file}", f"retrieval.port={port}")
    assert "in use" in found["retrieval.port"]
    words = ("serving.models.actor.port=8123", "retrieval.port=8123")
    assert "belongs to actor" in problems_of(*words)["retrieval.port"]


def test_the_plan_shows_the_service(corpus_file: Path):
    words = [f"retrieval.corpus={corpus_file}", "retrieval.backend=faiss", "retrieval.port=8123", "mode=plan"]
    config = compose_run(["+method=memagent", *words]).config
    assert any("faiss (flat) over hashed embeddings" in line for line in serving(config))
    table = placement_table(config)
    cells = [list(column.cells) for column in table.columns]
    assert "8123" in cells[3] and "retrieval" in cells[0]
