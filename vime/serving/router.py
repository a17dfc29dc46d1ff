"""The vllm-router in front of the replicas of one model: requests of one session go to one server while it lives."""

import sys
from typing import Any

from vime.config import ServingConfig
from vime.serving.flags import to_flags

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
"""A dead replica is left out, and a recovered one taken back, after about a second (the router's defaults: 52 s)."""


def router_command(config: ServingConfig, *, host: str, port: int, prometheus_port: int, worker_urls: list[str]) -> list[str]:
    """The command line of a router; `serving.router_args` come last and win."""
    arguments = {
        "host": host,
        "port": port,
        "worker_urls": worker_urls,
        "policy": config.router_policy,
        "prometheus_port": prometheus_port,
        "prometheus_host": "127.0.0.1",
        "log_level": "warning",
        "request_timeout_secs": int(config.request_timeout_seconds) + 1,
        "worker_startup_timeout_secs": int(config.start_timeout_seconds),
        "worker_startup_check_interval": 1,
        **QUICK_FAILOVER,
        **config.router_args,
    }
    return [sys.executable, "-m", "vllm_router.launch_router", *to_flags(arguments)]
