"""Starts the vllm-router; every request must carry the secret in the environment, which is passed on to the servers.

    python -m vime.serving.vllm_router --worker-urls … --port …        (arguments as for `vllm_router.launch_router`)

The router has each key that it has not seen checked at a URL. A small process of ours answers there, on the loopback, because the
router holds Python's interpreter lock for as long as it runs. This process listens before the router does: a key that the router
cannot have checked is refused for good.
"""

import http.server
import os
import signal
import sys
from functools import partial
from typing import Any

from vime.processes.launch import die_with_parent
from vime.processes.secret import VARIABLE, is_authorized


class _KeyCheck(http.server.BaseHTTPRequestHandler):
    """Answers 200 to the secret and 401 to anything else."""

    secret = ""

    def do_GET(self) -> None:
        """Checks the key of a request."""
        self.send_response(200 if is_authorized(self.headers.get("Authorization", ""), self.secret) else 401)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """Logs nothing, because a request may hold the secret."""


def start_key_check(secret: str) -> str:
    """Starts the process that checks keys and ends with this one; returns its URL."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _KeyCheck)
    if os.fork() == 0:
        die_with_parent()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _KeyCheck.secret = secret
        server.serve_forever()
    url = f"http://127.0.0.1:{server.server_port}/"
    server.server_close()  # the child's own is open
    return url


def main() -> None:
    """Runs the router until a signal stops it."""
    secret = os.environ.pop(VARIABLE, None)
    url = start_key_check(secret) if secret else None
    from vllm_router import router
    from vllm_router.launch_router import launch_router, parse_router_args

    arguments: Any = parse_router_args(sys.argv[1:])
    if secret:
        arguments.api_key = secret
        router._Router = partial(router._Router, api_key_validation_urls=[url])
    launch_router(arguments)


if __name__ == "__main__":
    main()
