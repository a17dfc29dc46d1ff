"""Signals that come while Ray starts are answered once it has started."""

import signal

import pytest
from ray._private import utils as ray_utils

from vime.config import RunConfig
from vime.errors import ServerError
from vime.runtime import Runtime, signals_end, signals_wait


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_for_the_end_of_the_block_and_rays_handler_stays_out(number: signal.Signals) -> None:
    answered: list[int] = []
    before = signal.signal(number, lambda number, frame: answered.append(number))
    ours, of_ray = signal.getsignal(number), ray_utils.set_sigterm_handler
    try:
        with signals_wait():
            ray_utils.set_sigterm_handler(lambda *_: pytest.fail("Ray's handler"))
            signal.raise_signal(number)
            assert not answered
        assert answered == [number] and signal.getsignal(number) is ours and ray_utils.set_sigterm_handler is of_ray
    finally:
        signal.signal(number, before)


def test_what_ends_the_block_is_raised_and_no_signal_after_it() -> None:
    answered: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: answered.append(number))
    try:
        with pytest.raises(RuntimeError, match="no Ray"), signals_wait():
            signal.raise_signal(signal.SIGINT)
            raise RuntimeError("no Ray")
        assert not answered
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_third_signal_breaks_off_the_start() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), signals_wait():
        for _ in range(3):
            signal.raise_signal(signal.SIGINT)
        pytest.fail("it went on")
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_ends_a_process_that_joins_a_cluster(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with signals_end():
        assert signal.getsignal(number) is signal.SIG_DFL  # a handler would wait for Ray's answer
    assert signal.getsignal(number) is before


def test_a_ray_that_does_not_start_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_: object) -> None:
        raise Exception("The current node timed out during startup.")

    config = RunConfig()
    monkeypatch.setattr("vime.runtime.ray.init", init)
    with pytest.raises(ServerError, match=r"Ray does not start on this machine: .*timed out"):
        Runtime(config, say=lambda text: None).__enter__()
    config.cluster.ray_address = "10.0.0.7:6379"
    with pytest.raises(ServerError, match=r"cluster\.ray_address=10\.0\.0\.7:6379 cannot be joined"):
        Runtime(config, say=lambda text: None).__enter__()
