"""The retrieval service: its passages, its embeddings and its port."""

from pathlib import Path

from vime.config import RetrievalBackend, RunConfig
from vime.errors import Problem
from vime.hooks import import_remedy, load_hook
from vime.preflight.rules.machine_requirements import is_free
from vime.preflight.rules.serving import HIGHEST_PORT, LOWEST_PORT, is_address, port_settings

NAME = "retrieval"
HASHED = "hashed"


def complete(config: RunConfig) -> list[Problem]:
    """The service has one source of passages and valid addresses, and embeddings are used with FAISS only."""
    retrieval, problems = config.retrieval, []
    if (retrieval.corpus or retrieval.generator) and retrieval.url:
        remedy = "a running service has its own corpus: set either this or the corpus to null"
        problems.append(Problem(key="retrieval.url", value=retrieval.url, remedy=remedy))
    if retrieval.corpus and retrieval.generator:
        remedy = f"retrieval.corpus={retrieval.corpus} is given as well: set one of the two to null"
        problems.append(Problem(key="retrieval.generator", value=retrieval.generator, remedy=remedy))
    for key in ("url", "embedding_url"):
        value = getattr(retrieval, key)
        if value is not None and not is_address(value):
            problems.append(Problem(key=f"retrieval.{key}", value=value, remedy="is not an address: use http://host:port"))
    if retrieval.embedding_url is not None and retrieval.embedding == HASHED:
        remedy = "also set the name of the model that is served there, as retrieval.embedding"
        problems.append(Problem(key="retrieval.embedding_url", value=retrieval.embedding_url, remedy=remedy))
    if retrieval.embedding != HASHED and retrieval.backend is RetrievalBackend.bm25:
        remedy = "BM25 has no embeddings: set retrieval.backend=faiss"
        problems.append(Problem(key="retrieval.embedding", value=retrieval.embedding, remedy=remedy))
    if retrieval.is_there and NAME in config.serving.models:
        remedy = "the retrieval service has this name in metrics and logs: give the model another name"
        problems.append(Problem(key=f"serving.models.{NAME}", value="set", remedy=remedy))
    return problems


def own_port(config: RunConfig) -> list[Problem]:
    """The port is not reserved for the system and not that of a server."""
    port, problems = config.retrieval.port, []
    if 0 < port < LOWEST_PORT:
        remedy = f"use a port from {LOWEST_PORT} to {HIGHEST_PORT}, or 0 for a free one"
        problems.append(Problem(key="retrieval.port", value=port, remedy=remedy))
    for name, _, model in port_settings(config):
        if port and model.port and model.port <= port < model.port + max(model.num_replicas, 1):
            remedy = f"port {port} already belongs to {name}: use another port, or 0 for a free one"
            problems.append(Problem(key="retrieval.port", value=port, remedy=remedy))
    return problems


def corpus_there(config: RunConfig) -> list[Problem]:
    """The corpus is an existing file, or its generator can be imported."""
    path, generator = config.retrieval.corpus, config.retrieval.generator
    if generator is not None:
        try:
            load_hook(generator)
        except ImportError as error:
            remedy = import_remedy(generator, error)
            return [Problem(key="retrieval.generator", value=generator, remedy=remedy)]
    if path is None or Path(path).is_file():
        return []
    remedy = f"there is no such file (in {Path.cwd()}): use a JSONL file with one passage per line (fields id, title, text)"
    return [Problem(key="retrieval.corpus", value=path, remedy=remedy)]


def port_free(config: RunConfig) -> list[Problem]:
    """No program listens on the chosen port."""
    retrieval, host = config.retrieval, config.cluster.host
    if not 0 < retrieval.port <= HIGHEST_PORT or not retrieval.is_started or is_free(host, retrieval.port):
        return []
    remedy = f"port {retrieval.port} on {host} is in use: choose another, or 0 for a free one"
    return [Problem(key="retrieval.port", value=retrieval.port, remedy=remedy)]
