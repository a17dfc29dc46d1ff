"""The viewer's server: read-only routes over run folders for one user on this machine.

Every request needs the token, which is in the address that is printed at the start and then in a cookie. Only GET is answered,
with pages of this package and with data that the routes read from the given runs; nothing of a run is ever sent as markup.
"""

import secrets
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vime.files.serialization import to_json
from vime.view.routes import ROUTES
from vime.view.runs import Runs

PAGES = Path(str(files("vime.view"))) / "pages"
TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
HOSTS = {"127.0.0.1", "localhost"}
"""Names under which the server answers; any other name would be that of a foreign site whose name points here."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
PLOTLY = "plotly.min.js"


def application(runs: Runs, *, token: str, port: int) -> Starlette:
    """The ASGI application. `port` is part of the cookie's name, because browsers share cookies between ports."""
    routes = [Route("/", _page("index.html")), Route("/pages/plotly.js", _plotly)]
    routes += [Route(f"/pages/{path.name}", _page(path.name)) for path in sorted(PAGES.iterdir()) if path.suffix in TYPES]
    routes += [Route(f"/api/{name}", _answer(function, runs)) for name, function in ROUTES.items()]
    return Starlette(routes=routes, middleware=[Middleware(AccessGuard, token=token, cookie=f"vime_view_{port}")])


class AccessGuard:
    """Refuses requests without a token, other than GET, or for other host names; adds headers that keep pages harmless."""

    def __init__(self, app: ASGIApp, *, token: str, cookie: str) -> None:
        self._app, self._token, self._cookie = app, token, cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        request = Request(scope)
        in_address = request.query_params.get("token", "")
        has_token = self._is_token(in_address)

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                found = list(message["headers"])
                names = {name for name, _ in found}
                found += [(name.encode(), value.encode()) for name, value in HEADERS.items() if name.encode() not in names]
                if has_token:
                    value = f"{self._cookie}={self._token}; HttpOnly; SameSite=Strict; Path=/"
                    found.append((b"set-cookie", value.encode()))
                message["headers"] = found
            await send(message)

        if (request.url.hostname or "") not in HOSTS:
            await _problem(421, "this server answers as 127.0.0.1 and localhost only")(scope, receive, guarded)
        elif not has_token and not self._is_token(request.cookies.get(self._cookie, "")):
            await _problem(403, "open the address with the token that the viewer printed")(scope, receive, guarded)
        elif request.method != "GET":
            await _problem(405, "this server only reads")(scope, receive, guarded)
        else:
            await self._app(scope, receive, guarded)

    def _is_token(self, text: str) -> bool:
        return secrets.compare_digest(text.encode(), self._token.encode())


def _page(name: str) -> Callable[[Request], Response]:
    path = PAGES / name

    def page(request: Request) -> Response:
        return FileResponse(path, media_type=TYPES[path.suffix])

    return page


def _plotly(request: Request) -> Response:
    import plotly

    path = Path(plotly.__path__[0]) / "package_data" / PLOTLY
    return FileResponse(path, media_type=TYPES[".js"], headers={"cache-control": "private, max-age=86400"})


def _answer(function: Callable[[Runs, Any], Any], runs: Runs) -> Callable[[Request], Response]:
    """A route that answers with JSON; an invalid request gets a sentence with status 400 or 404."""

    def answer(request: Request) -> Response:
        try:
            return Response(to_json(function(runs, request.query_params)), media_type="application/json")
        except FileNotFoundError as error:
            return _problem(404, str(error))
        except ValueError as error:
            return _problem(400, str(error))

    return answer


def _problem(status: int, text: str) -> Response:
    return Response(to_json({"problem": text}), status_code=status, media_type="application/json")
