"""The vllm-router in front of the replicas of one model: requests of one session go to one server while it lives."""

import logging
import sys
from collections.abc import Mapping
from typing import Any

import aiohttp

from vime.config import ServerRole, ServingConfig
from vime.errors import describe
from vime.processes.control import UNREACHABLE
from vime.processes.program import FREE_PORT, LISTEN, PORT
from vime.processes.secret import headers
from vime.serving.flags import to_flags

logger = logging.getLogger(__name__)

QUICK_FAILOVER: dict[str, Any] = {
    "health_check_interval_secs": 1,
    "health_check_timeout_secs": 1,
    "health_failure_threshold": 1,
    "health_success_threshold": 1,
    "cb_failure_threshold": 1,
    "cb_success_threshold": 1,
    "cb_timeout_duration_secs": 2,
    "retry_max_retries": 8,
    "retry_initial_backoff_ms": 100,
    "retry_max_backoff_ms": 1000,
}
"""With these, a dead replica is excluded, and a recovered one included, after about a second (the router's defaults: 52 s)."""
NO_LIMIT_SECONDS = 30 * 86400
"""Time limit of a request that means none in practice: clients notice a lost server by its silence, and replies may be long."""


def router_command(config: ServingConfig, *, urls: Mapping[ServerRole, list[str]]) -> list[str]:
    """The command line of a router in front of these servers; `serving.router_args` come last and win."""
    arguments = {
        "host": LISTEN,
        "port": PORT,
        "worker_urls": urls.get(ServerRole.regular) or None,
        "policy": config.router_policy,
        "prometheus_port": FREE_PORT,
        "prometheus_host": "127.0.0.1",
        "log_level": "warning",
        "request_timeout_secs": NO_LIMIT_SECONDS,
        "worker_startup_timeout_secs": int(config.start_timeout_seconds),
        "worker_startup_check_interval": 1,
        **QUICK_FAILOVER,
        **config.router_args,
    }
    command = [sys.executable, "-m", "vime.serving.vllm_router", *to_flags(arguments)]
    if ServerRole.prefill in urls:
        command.append("--vllm-pd-disaggregation")
        for role in (ServerRole.prefill, ServerRole.decode):
            command += [word for url in urls[role] for word in (f"--{role.value}", url)]
    return command


async def change_workers(
    router_url: str, *, remove: str | None = None, add: str | None = None, timeout_seconds: float, secret: str | None
) -> None:
    """Tells a router that a server has left, has come, or has moved; the router uses a new address once it is healthy.

    Requests in flight to a server that is removed go on.
    """
    timeout = aiohttp.ClientTimeout(total=timeout_seconds)
    async with aiohttp.ClientSession(timeout=timeout, headers=headers(secret)) as http:
        for path, url in (("remove_worker", remove), ("add_worker", add)):
            if url is None:
                continue
            try:
                async with http.post(f"{router_url}/{path}", params={"url": url}) as response:
                    logger.info("%s/%s: %d %s", router_url, path, response.status, await response.text())
            except UNREACHABLE as error:  # a router that starts again reads its command, which has the new address
                logger.warning("%s/%s of %s: %s", router_url, path, url, describe(error))
