"""The note of whose code runs: there when a process dies in a hook, whatever the hook does, and gone while it waits."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vime.workers import black_box
from vime.workers.black_box import NOBODY, BlackBox

ENDS = {
    "in the hook itself": ("os._exit(1)", 7),
    "in a task that the hook started": ("await asyncio.gather(asyncio.sleep(0), die())", 7),
    "behind several waits": ("\n        for _ in range(5): await asyncio.sleep(0.001)\n        os.kill(os.getpid(), 9)", 7),
    "while all wait": ("threading.Timer(0.05, os._exit, [1]).start(); await asyncio.sleep(60)", NOBODY),
}


@pytest.mark.parametrize("end", ENDS)
def test_after_a_death_it_says_in_whose_code(tmp_path: Path, end: str):
    code, work = ENDS[end]
    program = f"""
import asyncio, os, threading
from pathlib import Path
from vime.workers import black_box

async def die():
    os._exit(1)

async def hook(number):
    black_box.begin(number)
    if number == 7:
        await asyncio.sleep(0.01)
        {code}
    while True:
        await asyncio.sleep(0.001)

async def main():
    box = black_box.BlackBox(Path({str(tmp_path / "box")!r}))
    await asyncio.gather(*[asyncio.create_task(begun(number)) for number in (6, 7, 8)])

async def begun(number):
    black_box.begin(number)
    await asyncio.create_task(hook(number))

asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[2], check=False)
    assert black_box.read(tmp_path / "box") == work


def test_nobody_is_named_where_there_is_no_box(tmp_path: Path):
    assert black_box.read(tmp_path / "none") == NOBODY


async def test_noted_tasks_return_raise_and_are_cancelled_as_others(tmp_path: Path):
    box, loop = BlackBox(tmp_path / "box"), asyncio.get_running_loop()
    try:
        black_box.begin(5)
        seen = []

        async def returns() -> int:
            seen.append(black_box.read(tmp_path / "box"))
            await asyncio.sleep(0)
            return 3

        async def raises() -> None:
            await asyncio.sleep(0)
            raise KeyError("mine")

        async def cleans_up() -> None:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise

        assert await asyncio.create_task(returns()) == 3
        with pytest.raises(KeyError, match="mine"):
            await asyncio.create_task(raises())
        task = asyncio.create_task(cleans_up())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.sleep(60), 0.01)
        assert seen == [5, "cancelled"] and box and os.path.getsize(tmp_path / "box") == 8
    finally:
        loop.set_task_factory(None)
        black_box.begin(NOBODY)
