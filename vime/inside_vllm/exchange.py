"""An exchange of weights between two steps, by one message; the new ones were loaded beside the old ones.

In vLLM's own protocol the engine is idle while four messages arrive one after the other: to pause, to finish the update, to clear
the cache, and to go on. Here the engine does all of this by itself.
"""

import time
from concurrent.futures import Future
from typing import Any

from vime.weights.payload import EXCHANGE_PATH

METHOD = "exchange_weights"


def install() -> None:
    """Gives the method to vLLM's engine and the path to its API server, before either is started; only once."""
    from fastapi import Body, Request
    from vllm.entrypoints.rl.online import api_router
    from vllm.v1.engine.core import EngineCoreProc

    if is_installed():
        return

    async def exchange(request: Request, weight_version: str = Body(), keep_cache: bool = Body()) -> dict[str, float]:
        front = request.app.state.engine_client
        if not keep_cache:
            await front.renderer.clear_mm_cache_async()
        return {"seconds": await front.engine_core.call_utility_async(METHOD, weight_version, keep_cache)}

    api_router.router.add_api_route(EXCHANGE_PATH, exchange, methods=["POST"])
    setattr(EngineCoreProc, METHOD, exchange_weights)


def is_installed() -> bool:
    """True if servers of this program can exchange weights; one started as plain `vllm serve` cannot."""
    from vllm.v1.engine.core import EngineCoreProc

    return hasattr(EngineCoreProc, METHOD)


def exchange_weights(engine: Any, weight_version: str, keep_cache: bool) -> "Future[float]":
    """Stops between two steps, exchanges the weights, clears the prefix cache unless `keep_cache`, and goes on.

    Requests keep their places in the queue. Returns the seconds for which the engine stood still. After an error it stays paused,
    because it may hold half of the new weights.
    """
    started = time.monotonic()
    exchanged: Future[float] = Future()

    def exchange(paused: "Future[None] | None" = None) -> None:
        try:
            if paused is not None:
                paused.result()
            engine.collective_rpc("start_weight_update")
            engine.collective_rpc("finish_weight_update")
            engine.set_weight_version(weight_version)
            if not keep_cache:
                engine._reset_caches()
            engine.resume_scheduler()
        except Exception as error:  # the boundary to whoever waits for the future
            exchanged.set_exception(error)
        else:
            exchanged.set_result(time.monotonic() - started)

    paused = engine.pause_scheduler(mode="keep", clear_cache=False)
    if paused is None:
        exchange()
    else:
        paused.add_done_callback(exchange)
    return exchanged
