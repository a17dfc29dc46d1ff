"""A process that saves again and again and is killed, 20 times over; started by `test_checkpoint.py`.

    python killed_saver.py MODEL FOLDER NUM_KILLS REPORT.json

Each round forks a process that loads the newest checkpoint and then saves one after the other, with the step's number in
every weight, moment and in the driver's part, and spoils the weights as soon as `save` returns. The report says for each
round what was loaded, whether it was what had been saved, and which steps had been reported complete or begun before.
"""

import asyncio
import importlib.util
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vime.trainer import cpu_shim

cpu_shim.install()

import torch  # noqa: E402

from vime import checkpoint  # noqa: E402
from vime.trainer import optimizer_state, parallel  # noqa: E402
from vime.trainer.engine import Engine  # noqa: E402

LONGEST_LIFE_SECONDS = 0.4


class OneRank:
    """An engine behind the trainer's awaitable methods."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def begin_save(self, folder: Path) -> None:
        self._engine.begin_save(folder)

    async def is_saved(self) -> bool:
        return self._engine.is_saved()

    async def finish_save(self) -> None:
        self._engine.finish_save()

    async def load(self, folder: Path) -> None:
        self._engine.load(folder)


@torch.no_grad()
def fill(engine: Engine, step: float) -> None:
    """Writes a number into everything that a checkpoint holds."""
    for part in optimizer_state.parts(engine.optimizer):
        for offset, kind in enumerate(optimizer_state.KINDS):
            part.tensors[kind].fill_(step + offset / 4)


def holds(engine: Engine, step: float) -> bool:
    """Whether `fill` wrote this number, everywhere."""
    parts = optimizer_state.parts(engine.optimizer)
    kinds = list(enumerate(optimizer_state.KINDS))
    return all(bool((part.tensors[kind] == step + offset / 4).all()) for part in parts for offset, kind in kinds)


async def save_for_ever(config: Any, folder: Path, tell: Callable[..., object]) -> None:
    """Loads the newest checkpoint, then saves until somebody kills the process."""
    address = f"127.0.0.1:{parallel.free_port('127.0.0.1')}"
    parallel.initialize(config.trainer, rank=0, address=address, seed=0)
    engine = Engine(config)
    checkpoints = checkpoint.Checkpoints(folder, config.trainer, OneRank(engine))
    newest, step = checkpoints.newest(), 0
    if newest is not None:
        driver = await checkpoints.load(newest)
        step = driver["step"]
        tell(loaded=step, right=holds(engine, step) and driver["mark"] == step and newest.name == f"step_{step:06d}")
    else:
        tell(loaded=0, right=True)
    while True:
        step += 1
        for _ in range(2 if step % 3 == 0 else 1):  # now and then one that is there already is replaced
            fill(engine, step)
            tell(begun=step)
            await checkpoints.save(step=step, driver={"mark": step})
            fill(engine, -1)
            await checkpoints.settle()
            tell(complete=step)


def one_round(config: Any, folder: Path, life_seconds: float) -> list[dict[str, Any]]:
    """Forks, waits until the process has loaded and lived on for some time, kills it; returns what it told."""
    reader, writer = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            tell = lambda **event: os.write(writer, (json.dumps(event) + "\n").encode())  # noqa: E731
            asyncio.run(save_for_ever(config, folder, tell))
        finally:
            os._exit(1)
    os.close(writer)
    told = b""
    while b"loaded" not in told:
        part = os.read(reader, 4096)
        assert part, "the process died by itself"
        told += part
    time.sleep(life_seconds)
    os.kill(process, signal.SIGKILL)
    while part := os.read(reader, 4096):
        told += part
    os.close(reader)
    os.waitpid(process, 0)
    return [json.loads(line) for line in told.decode().splitlines()]


def main() -> None:
    """All rounds."""
    checkpoint.POLL_SECONDS = 0.005  # so that hardly a kill falls into a pause
    model, folder, num_kills, report = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    spec = importlib.util.spec_from_file_location("trainer_fixtures", Path(__file__).with_name("conftest.py"))
    assert spec is not None and spec.loader is not None
    fixtures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fixtures)
    config = fixtures.build_config(model, num_threads=1, keep_checkpoints=1)
    generator = random.Random(0)
    rounds = [one_round(config, folder, generator.uniform(0, LONGEST_LIFE_SECONDS)) for _ in range(num_kills + 1)]
    report.write_text(json.dumps(rounds))


if __name__ == "__main__":
    main()
