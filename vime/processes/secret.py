"""The secret of a run, without which its servers, routers and retrieval service answer nothing but /health.

Programs that listen on the loopback only need none. Beyond the loopback a run makes a secret, or takes the one in the environment
variable VIME_SECRET. Programs get it in their environment, never on a command line, and it appears in no log and no file.

A vLLM server that the run does not start needs the same variable: `VIME_SECRET=… python -m vime.inside_vllm.vllm_server …`.
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
    """True if an address is reached from this machine only; names other than localhost are not looked up."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def given_secret() -> str | None:
    """The secret in the environment variable VIME_SECRET, or None."""
    return os.environ.get(VARIABLE) or None


def run_secret(host: str) -> str | None:
    """The secret for programs that listen on `host`: the given one, else a new one, or None on the loopback."""
    return given_secret() or (None if is_loopback(host) else secrets.token_urlsafe(NUM_BYTES))


def headers(secret: str | None) -> dict[str, str]:
    """The headers of a request with this secret."""
    return {"Authorization": f"Bearer {secret}"} if secret else {}


def is_authorized(authorization: str, secret: str) -> bool:
    """True if an Authorization header holds the secret; the comparison takes the same time for every wrong one."""
    return hmac.compare_digest(authorization.encode(), f"Bearer {secret}".encode())


class RequireSecret:
    """ASGI middleware that answers 401 without the secret, to every path but /health."""

    def __init__(self, app: Any) -> None:
        self._app, self._secret = app, os.environ[VARIABLE]

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Passes a request on, or refuses it; the server's own events, neither HTTP nor WebSocket, are passed on."""
        found = {name.lower(): value for name, value in scope.get("headers", ())}
        is_open = scope["type"] == "http" and scope["path"] == OPEN_PATH
        is_own = scope["type"] not in ("http", "websocket")
        if is_own or is_open or is_authorized(found.get(b"authorization", b"").decode("latin-1"), self._secret):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await send({"type": "http.response.start", "status": 401, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": b"this server answers only requests with the secret of its run"})
