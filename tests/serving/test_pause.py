"""The pause of a weight sync, in vLLM's own front end, without an engine."""

import asyncio
from types import SimpleNamespace

import pytest

from vime.inside_vllm.vllm_server import pause_at_once


async def test_a_pause_stops_the_engine_clears_what_it_was_asked_to_and_waits_for_nothing_else(monkeypatch: pytest.MonkeyPatch):
    from vllm.v1.engine.async_llm import AsyncLLM

    monkeypatch.setattr(AsyncLLM, "pause_generation", AsyncLLM.pause_generation)
    pause_at_once()
    done = []

    async def sleep(seconds: float) -> None:
        done.append(f"slept {seconds} s")

    monkeypatch.setattr(asyncio, "sleep", sleep)

    async def clear() -> None:
        done.append("cleared")

    async def stop(*, mode: str, clear_cache: bool) -> None:
        done.append((mode, clear_cache))

    front = SimpleNamespace(
        renderer=SimpleNamespace(clear_mm_cache_async=clear), engine_core=SimpleNamespace(pause_scheduler_async=stop)
    )
    await AsyncLLM.pause_generation(front, mode="keep", clear_cache=False)  # type: ignore[arg-type]
    await AsyncLLM.pause_generation(front, mode="abort", clear_cache=True)  # type: ignore[arg-type]
    assert done == [("keep", False), "cleared", ("abort", True)]
