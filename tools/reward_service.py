r"""An example of a reward service: 1 if a reply ends with the reference, else 0; it can fail in four ways, to see what follows.

    export REWARD_KEY=…
    python tools/reward_service.py --port 8900 --key-variable REWARD_KEY [--fault slow|down|wrong|overloaded]
    python -m vime.run +method=memagent method.reward=vime.reward_service.hook.reward \
        reward_service.url=http://127.0.0.1:8900/score reward_service.api_key_variable=REWARD_KEY

The format of requests and answers is described in `vime/reward_service/README.md`.
"""

import argparse
import asyncio
import os
import re
from typing import Any

from aiohttp import web

FAULTS = ("none", "slow", "down", "wrong", "overloaded")
SLOW_SECONDS = 600.0
RETRY_AFTER_SECONDS = 2
_SIGNS = re.compile(r"[\s.$}]+$")


def score(item: dict[str, Any]) -> dict[str, Any]:
    """One item's reward, with metrics besides; evaluations show `strict` and `lenient`."""
    response = _SIGNS.sub("", item["samples"][-1]["response"]).lower()
    right = any(response.endswith(label.strip().lower()) for label in item["label"])
    mentioned = any(label.strip().lower() in response for label in item["label"])
    return {"id": item["id"], "reward": float(right), "metrics": {"strict": float(right), "lenient": float(mentioned)}}


def make_app(*, key: str | None = None, fault: str = "none", retry_after: float = RETRY_AFTER_SECONDS) -> web.Application:
    """The service; `fault` says how it fails."""

    async def answer(request: web.Request) -> web.StreamResponse:
        if key is not None and request.headers.get("Authorization") != f"Bearer {key}":
            return web.Response(status=401, text="another key, please")
        if fault == "slow":
            await asyncio.sleep(SLOW_SECONDS)
        if fault == "down":
            assert request.transport is not None
            request.transport.close()
        if fault == "wrong":
            return web.Response(text="<html>it works</html>")
        if fault == "overloaded":
            return web.Response(status=429, headers={"Retry-After": f"{retry_after:g}"})
        return web.json_response({"rewards": [score(item) for item in (await request.json())["items"]]})

    app = web.Application(client_max_size=64 * 2**20)
    app.router.add_post("/score", answer)
    return app


def main() -> None:
    """Reads the command line and serves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8900)
    parser.add_argument("--key-variable", default=None, help="the environment variable with the key that clients must send")
    parser.add_argument("--fault", choices=FAULTS, default="none")
    options = parser.parse_args()
    key = os.environ[options.key_variable] if options.key_variable else None
    web.run_app(make_app(key=key, fault=options.fault), host="127.0.0.1", port=options.port)


if __name__ == "__main__":
    main()
