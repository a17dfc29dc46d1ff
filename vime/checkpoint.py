"""A checkpoint of a run: the trainer's state, the prompts and groups in flight, and the step, all or nothing.

`checkpoints/step_000050/` holds `trainer/` and `driver.json`. It is written beside its place and renamed into it, so a crash
while saving leaves the previous one whole.
"""

import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

from vime.errors import CheckpointError
from vime.trainer.group import TrainerGroup

logger = logging.getLogger(__name__)

DRIVER_FILE = "driver.json"


def latest_checkpoint(folder: Path) -> Path | None:
    """The checkpoint of the highest step, None if there is none."""
    found = sorted(path for path in folder.glob("step_*") if (path / DRIVER_FILE).exists())
    return found[-1] if found else None


async def save_checkpoint(folder: Path, *, step: int, trainer: TrainerGroup, driver: dict[str, Any], keep: int) -> Path:
    """Saves the state after `step` optimizer batches, then removes all but the newest `keep` checkpoints."""
    final, temporary = folder / f"step_{step:06d}", folder / f".writing_{step:06d}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    await trainer.save(temporary / "trainer")
    with (temporary / DRIVER_FILE).open("w") as file:
        json.dump({"step": step, **driver}, file)
        file.flush()
        os.fsync(file.fileno())
    shutil.rmtree(final, ignore_errors=True)
    temporary.rename(final)
    for old in sorted(folder.glob("step_*"))[: -max(keep, 1)]:
        shutil.rmtree(old)
    return final


async def load_checkpoint(path: Path, *, trainer: TrainerGroup) -> dict[str, Any]:
    """Restores the trainer and returns what `save_checkpoint` was given as `driver`, with its `step`.

    Raises `CheckpointError` if a part is missing or damaged.
    """
    try:
        driver = json.loads((path / DRIVER_FILE).read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{path / DRIVER_FILE} cannot be read ({error}); resume from another checkpoint") from error
    await trainer.load(path / "trainer")
    return driver
