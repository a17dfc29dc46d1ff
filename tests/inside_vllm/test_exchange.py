"""The order in which an engine takes new weights between two steps, with a stand-in for it; real ones: test_weight_sync.py."""

from concurrent.futures import Future
from typing import Any

import pytest

from vime.inside_vllm.exchange import exchange_weights


class Engine:
    """Remembers what happened; a step is at work until `idle`, unless there is none."""

    def __init__(self, *, is_busy: bool, fails_in: str = "") -> None:
        self.happened: list[str] = []
        self.idle: Future[None] = Future()
        self._is_busy, self._fails_in = is_busy, fails_in

    def pause_scheduler(self, *, mode: str, clear_cache: bool) -> "Future[None] | None":
        self.happened.append(f"pause {mode} {clear_cache}")
        return self.idle if self._is_busy else None

    def collective_rpc(self, method: str) -> None:
        self._note(method)

    def set_weight_version(self, version: str) -> None:
        self._note(f"version {version}")

    def _reset_caches(self) -> None:
        self._note("clear")

    def resume_scheduler(self) -> None:
        self._note("resume")

    def _note(self, event: str) -> None:
        if event == self._fails_in:
            raise RuntimeError(f"{event} failed")
        self.happened.append(event)


TAKEN = ["start_weight_update", "finish_weight_update", "version 7"]


@pytest.mark.parametrize("is_busy", [False, True])
@pytest.mark.parametrize("keep_cache", [False, True])
def test_an_engine_takes_weights_when_no_step_is_at_work_and_labels_tokens_before_it_goes_on(is_busy: bool, keep_cache: bool):
    engine = Engine(is_busy=is_busy)
    exchanged = exchange_weights(engine, "7", keep_cache)
    if is_busy:
        assert not exchanged.done() and engine.happened == ["pause keep False"]
        engine.idle.set_result(None)
    assert exchanged.result(timeout=0) >= 0
    assert engine.happened == ["pause keep False", *TAKEN, *([] if keep_cache else ["clear"]), "resume"]


@pytest.mark.parametrize("step", [*TAKEN, "clear"])
def test_an_engine_that_fails_half_way_does_not_go_on(step: str):
    engine: Any = Engine(is_busy=True, fails_in=step)
    exchanged = exchange_weights(engine, "7", False)
    engine.idle.set_result(None)
    with pytest.raises(RuntimeError, match=f"{step} failed"):
        exchanged.result(timeout=0)
    assert "resume" not in engine.happened
