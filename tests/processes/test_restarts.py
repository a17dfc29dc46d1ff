"""The budget of restarts: it fills up again with health, and is used up by a program that does not stay well."""

import asyncio
from typing import Any

import pytest

from tests.virtual_time import run
from vime.config import ServingConfig
from vime.processes import keeper
from vime.processes.keeper import Keeper
from vime.processes.program import ProgramSpec
from vime.processes.restarts import Restarts

HOUR = 3600.0


class Launched:
    """A program that needs no process."""

    def __init__(self, spec: ProgramSpec) -> None:
        self.spec, self.num_launches = spec, 0

    async def take_port(self) -> bool:
        return False

    def launch(self) -> None:
        self.num_launches += 1

    async def kill(self) -> None: ...

    def log_tail(self) -> str:
        return ""


class Lives:
    """A program's health: well for these seconds, launch after launch; None is a start that fails."""

    def __init__(self, *seconds: float | None) -> None:
        self._seconds = list(seconds)

    async def until_started(self, has_started: Any) -> Any:
        if self._seconds[0] is None:
            self._seconds.pop(0)
            return "died", "while starting"
        return None

    async def until_lost(self) -> Any:
        seconds = self._seconds.pop(0)
        assert seconds is not None
        await asyncio.sleep(seconds)
        return "died", "later"


@pytest.fixture
def num_launches(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Number of launches of a program with these lives before it is given up."""

    def count(*lives: float | None, most: int = 3) -> int:
        settings = ServingConfig(max_restarts=most, restart_window_seconds=HOUR)
        launched = Launched(ProgramSpec(name="p", address="127.0.0.1", port=1, command=[], log="", settings=settings))
        monkeypatch.setattr(keeper, "ProgramProcess", lambda spec: launched)
        monkeypatch.setattr(keeper, "Health", lambda process, http: Lives(*lives))

        async def main() -> int:
            kept = Keeper(launched.spec)
            await kept.start()
            while "gave_up" not in [event["event"] for event in await kept.events()]:
                await asyncio.sleep(HOUR)
            await kept.stop()
            return launched.num_launches

        return run(main())[0]

    return count


def test_deaths_in_a_row_use_the_budget_up(num_launches: Any):
    assert num_launches(*[60.0] * 9) == 4
    assert num_launches(60.0, None, None, None, None, None) == 4
    assert num_launches(*[60.0] * 9, most=0) == 1


def test_a_first_start_that_fails_is_not_tried_again(num_launches: Any):
    assert num_launches(None, 60.0) == 1


def test_restarts_long_ago_do_not_count(num_launches: Any):
    assert num_launches(*[25 * HOUR] * 40, *[60.0] * 9) == 40 + 3
    assert num_launches(60.0, 60.0, 60.0, 1.1 * HOUR, 60.0) == 5


def test_a_program_that_is_well_for_half_the_window_each_time_is_given_up(num_launches: Any):
    assert num_launches(*[HOUR / 2] * 20) < 10


def test_health_forgives_no_more_than_was_used():
    restarts = Restarts(2, HOUR)
    restarts.was_well(100 * HOUR)
    assert [restarts.take() for _ in range(3)] == [True, True, False]
