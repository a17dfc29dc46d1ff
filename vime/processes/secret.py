"""The secret of a run, without which its servers, routers and retrieval service answer nothing but /health.

What listens on the loopback only needs none. Beyond it a run makes one, or takes that of the environment variable VIME_SECRET,
which servers of others need too. It reaches programs in their environment, never on a command line, and is shown nowhere.

For a vLLM server of your own: `VIME_SECRET=… python -m vime.serving.vllm_server …`, and the same variable where the run starts.
"""

import hmac
import ipaddress
import os
import secrets
from typing import Any

VARIABLE = "VIME_SECRET"
OPEN_PATH = "/health"
MIN_CHARACTERS = 16
NUM_BYTES = 32


def is_loopback(host: str) -> bool:
    """Whether what listens on this address is reached from this machine only; names other than localhost are not looked up."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def given_secret() -> str | None:
    """That of the environment, None if there is none."""
    return os.environ.get(VARIABLE) or None


def run_secret(host: str) -> str | None:
    """The secret for programs that listen on `host`: the given one, else beyond the loopback a new one."""
    return given_secret() or (None if is_loopback(host) else secrets.token_urlsafe(NUM_BYTES))


def headers(secret: str | None) -> dict[str, str]:
    """What a request carries."""
    return {"Authorization": f"Bearer {secret}"} if secret else {}


def is_authorized(authorization: str, secret: str) -> bool:
    """Whether a request's header has the secret; takes as long for every wrong one."""
    return hmac.compare_digest(authorization.encode(), f"Bearer {secret}".encode())


class RequireSecret:
    """ASGI middleware that answers 401 without the secret, to every path but /health."""

    def __init__(self, app: Any) -> None:
        self._app, self._secret = app, os.environ[VARIABLE]

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """One request; what is neither HTTP nor a WebSocket is the server's own."""
        found = {name.lower(): value for name, value in scope.get("headers", ())}
        is_open = scope["type"] == "http" and scope["path"] == OPEN_PATH
        is_own = scope["type"] not in ("http", "websocket")
        if is_own or is_open or is_authorized(found.get(b"authorization", b"").decode("latin-1"), self._secret):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await send({"type": "http.response.start", "status": 401, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": b"this server answers with its run's secret only"})
