"""A hook that blocks the event loop is found, named, and ended, and costs its rollout only."""

import asyncio
import logging
import subprocess
import sys

import pytest

from vime.rollout.within import EXIT_CODE, Watchdog, within


def spin_in_a_hook() -> None:
    while True:
        pass


async def spinning() -> None:
    spin_in_a_hook()


async def test_a_loop_without_await_is_interrupted_and_the_others_go_on(caplog: pytest.LogCaptureFixture):
    watchdog = Watchdog(0.4)
    other = asyncio.create_task(asyncio.sleep(0, "finished"))
    with caplog.at_level(logging.WARNING), pytest.raises(RuntimeError, match="HookBlocked"):
        await within(spinning(), 60)
    watchdog.stop()
    assert await other == "finished"
    assert "spin_in_a_hook" in caplog.text and "rollout.max_blocked_seconds=0.4" in caplog.text


def test_what_cannot_be_interrupted_ends_the_process():
    code = "import asyncio, time\nfrom vime.rollout.within import Watchdog\n"
    code += "async def main():\n    watchdog = Watchdog(0.2)\n    time.sleep(60)\nasyncio.run(main())"
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50)
    assert finished.returncode == EXIT_CODE
    assert "blocked since" in finished.stderr and "in main" in finished.stderr
