"""A process that saves again and again and is killed, 20 times over; started by `test_checkpoint.py`.

    python killed_saver.py MODEL FOLDER NUM_KILLS REPORT.json

Each round forks a process that loads the newest checkpoint and then saves one after the other, with the step's number in
every weight, moment and in the driver's part, and spoils the weights as soon as `save` returns. Before a file operation whose
number is drawn at random it kills itself, so how busy the machine is decides nothing. The report says for each round what was
loaded, whether it was what had been saved, and which steps had been reported complete or begun before.
"""

import asyncio
import importlib.util
import itertools
import json
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vime.trainer import megatron_setup

megatron_setup.set_up()

import torch  # noqa: E402

from vime import run_checkpoints  # noqa: E402
from vime.trainer import optimizer_state, parallel  # noqa: E402
from vime.trainer.lockstep import LockstepEngine  # noqa: E402

MOST_OPERATIONS = 100
OPERATIONS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir"}
"""Python's names of what changes a folder, as it tells them to audit hooks; a file is also opened to be read."""


class OneRank:
    """An engine behind the trainer's awaitable methods."""

    def __init__(self, engine: LockstepEngine) -> None:
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
def fill(engine: LockstepEngine, step: float) -> None:
    """Writes a number into everything that a checkpoint holds."""
    for part in optimizer_state.parts(engine.optimizer):
        for offset, kind in enumerate(optimizer_state.KINDS):
            part.tensors[kind].fill_(step + offset / 4)


def holds(engine: LockstepEngine, step: float) -> bool:
    """True if `fill` wrote this number, everywhere."""
    parts = optimizer_state.parts(engine.optimizer)
    kinds = list(enumerate(optimizer_state.KINDS))
    return all(bool((part.tensors[kind] == step + offset / 4).all()) for part in parts for offset, kind in kinds)


def kill_before(operation: int, folder: Path) -> None:
    """Kills this process just before its file operation of that number within a folder."""
    done = itertools.count(1)

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        if event in OPERATIONS and str(arguments[0]).startswith(str(folder)) and next(done) == operation:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)


async def save_for_ever(config: Any, folder: Path, tell: Callable[..., object], operation: int) -> None:
    """Loads the newest checkpoint, then saves until a file operation kills the process."""
    parallel.initialize(config.trainer, rank=0, seed=0)
    engine = LockstepEngine(config)
    checkpoints = run_checkpoints.Checkpoints(folder, config.trainer, OneRank(engine))
    newest, step = checkpoints.newest(), 0
    if newest is not None:
        driver = await checkpoints.load(newest)
        step = driver["step"]
        tell(loaded=step, right=holds(engine, step) and driver["mark"] == step and newest.name == f"step_{step:06d}")
    else:
        tell(loaded=0, right=True)
    kill_before(operation, folder)
    while True:
        step += 1
        for _ in range(2 if step % 3 == 0 else 1):  # now and then one that is there already is replaced
            fill(engine, step)
            tell(begun=step)
            await checkpoints.save(step=step, driver={"mark": step})
            fill(engine, -1)
            await checkpoints.settle()
            tell(complete=step)


def one_round(config: Any, folder: Path, operation: int) -> list[dict[str, Any]]:
    """Forks a process that is killed before a file operation; returns what it told."""
    reader, writer = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            tell = lambda **event: os.write(writer, (json.dumps(event) + "\n").encode())  # noqa: E731
            asyncio.run(save_for_ever(config, folder, tell, operation))
        finally:
            os._exit(1)
    os.close(writer)
    told = b""
    while part := os.read(reader, 4096):
        told += part
    os.close(reader)
    _, status = os.waitpid(process, 0)
    assert os.WIFSIGNALED(status), f"the process ended with {status} before it was killed"
    return [json.loads(line) for line in told.decode().splitlines()]


def main() -> None:
    """All rounds."""
    run_checkpoints.POLL_SECONDS = 0.005
    model, folder, num_kills, report = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    spec = importlib.util.spec_from_file_location("trainer_fixtures", Path(__file__).with_name("conftest.py"))
    assert spec is not None and spec.loader is not None
    fixtures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fixtures)
    config = fixtures.build_config(model, num_threads=1, keep_checkpoints=1)
    generator = random.Random(0)
    rounds = [one_round(config, folder, generator.randint(1, MOST_OPERATIONS)) for _ in range(num_kills + 1)]
    report.write_text(json.dumps(rounds))


if __name__ == "__main__":
    main()
