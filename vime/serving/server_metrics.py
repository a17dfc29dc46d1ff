"""The counters of a vLLM server, read from its `/metrics`, and the metrics of a step that follow from them."""

from dataclasses import dataclass, fields

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from vime.processes.control import UNREACHABLE

TIMEOUT_SECONDS = 10.0
NAMES = {
    "vllm:num_requests_running": "num_running",
    "vllm:num_requests_waiting": "num_waiting",
    "vllm:prefix_cache_queries_total": "prefix_queries",
    "vllm:prefix_cache_hits_total": "prefix_hits",
    "vllm:request_queue_time_seconds_sum": "queue_seconds",
    "vllm:request_queue_time_seconds_count": "num_queued",
    "vllm:spec_decode_num_draft_tokens_total": "draft_tokens",
    "vllm:spec_decode_num_accepted_tokens_total": "accepted_tokens",
}
"""vLLM's names of the counters, and ours."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerMetrics:
    """Counters since the start of a server, and `num_running` and `num_waiting`, the present numbers.

    Example: `ServerMetrics(prefix_queries=4096, prefix_hits=1024, num_queued=16, queue_seconds=0.8)`.
    """

    num_running: float = 0.0
    num_waiting: float = 0.0
    prefix_queries: float = 0.0
    """Prompt tokens looked up in the prefix cache."""
    prefix_hits: float = 0.0
    queue_seconds: float = 0.0
    """Time that requests waited to be scheduled, summed over requests."""
    num_queued: float = 0.0
    draft_tokens: float = 0.0
    accepted_tokens: float = 0.0

    def since(self, before: "ServerMetrics | None") -> "ServerMetrics":
        """The counts after `before`; all of them if the server was started again meanwhile."""
        if before is None or self.num_queued < before.num_queued or self.prefix_queries < before.prefix_queries:
            return self
        counts = {f.name: getattr(self, f.name) - getattr(before, f.name) for f in fields(self)}
        return ServerMetrics(**(counts | {"num_running": self.num_running, "num_waiting": self.num_waiting}))


async def read_metrics(http: aiohttp.ClientSession, url: str) -> ServerMetrics | None:
    """The counters of the server at `url`, None if it does not answer."""
    try:
        async with http.get(f"{url}/metrics", timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)) as response:
            return parse(await response.text()) if response.status == 200 else None
    except UNREACHABLE:
        return None


def parse(text: str) -> ServerMetrics:
    """The counters in Prometheus' text format, summed over engines."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if (name := NAMES.get(sample.name)) is not None:
                found[name] = found.get(name, 0.0) + sample.value
    return ServerMetrics(**found)


def summarize(servers: list[ServerMetrics]) -> dict[str, float]:
    """The metrics of one model from the changes of its servers' counters, by their short names."""
    total: dict[str, float] = {
        field.name: sum(getattr(server, field.name) for server in servers) for field in fields(ServerMetrics)
    }
    metrics = {"num_waiting": total["num_waiting"]}
    if total["prefix_queries"]:
        metrics["prefix_hit_rate"] = total["prefix_hits"] / total["prefix_queries"]
    if total["num_queued"]:
        metrics["queue_seconds"] = total["queue_seconds"] / total["num_queued"]
    if total["draft_tokens"]:
        metrics["draft_acceptance_rate"] = total["accepted_tokens"] / total["draft_tokens"]
    return metrics
