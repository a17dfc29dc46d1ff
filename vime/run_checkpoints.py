"""The checkpoints of a run: the trainer's state, the prompts and groups in flight, and the step, all or nothing.

`checkpoints/step_000050/` holds `trainer/`, `driver.json` and its checksum. It is written beside its place while training
goes on, and renamed into it when it is complete, so a crash at any moment leaves the previous one whole.
"""

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from vime.config import TrainerConfig
from vime.errors import CheckpointError, VimeError
from vime.files.folders import put_in_place, remove, tidy, writing_place
from vime.files.jsonl import write_text
from vime.files.serialization import from_json, json_pieces

logger = logging.getLogger(__name__)

CHECKPOINTS = "checkpoints"
"""The folder of checkpoints in the run folder."""
DRIVER_FILE, DIGEST_FILE, BEST_FILE = "driver.json", "driver.blake2b", "best.json"
POLL_SECONDS = 0.2
SLOT_DEPTH = 3
"""`driver.json` is written one slot of the buffer at a time (`buffer`, `slots`, number), so as not to block the event loop."""
ADVICE = "move this checkpoint away, and resume=true goes on from the one before"


class SavingTrainer(Protocol):
    """The methods of `vime.trainer.group.TrainerGroup` that are needed here."""

    async def begin_save(self, folder: Path) -> None: ...

    async def is_saved(self) -> bool: ...

    async def finish_save(self) -> None: ...

    async def load(self, folder: Path) -> None: ...


class Checkpoints:
    """The folder of a run's checkpoints; unfinished checkpoints of an earlier start are removed.

    One save is under way at a time. If it fails, the next call of `save`, `check`, `settle` or `close` raises a
    `CheckpointError`, or with `trainer.stop_on_failed_save=false` tells `warn`, and the run goes on.
    """

    def __init__(
        self, folder: Path, config: TrainerConfig, trainer: SavingTrainer, *, warn: Callable[[str], None] = logger.warning
    ) -> None:
        self._folder, self._config, self._trainer, self._warn = folder, config, trainer, warn
        self._writing: asyncio.Task[None] | None = None
        self._begun: tuple[int | None, bool] = None, False
        """The step of `begin`, and whether it succeeded."""
        self._closing = asyncio.Event()
        """Set once nothing but a save is left to do, for which the trainer then waits itself."""
        folder.mkdir(parents=True, exist_ok=True)
        tidy(folder)

    def newest(self) -> Path | None:
        """The checkpoint of the highest step, None if there is none."""
        return next(reversed(self._complete()), None)

    def has(self, step: int) -> bool:
        """True if there is a checkpoint of this step."""
        return any(path.name == f"step_{step:06d}" for path in self._complete())

    def oldest_step(self) -> int | None:
        """The lowest step that has a checkpoint, None if none has."""
        return next((int(path.name.removeprefix("step_")) for path in self._complete()), None)

    async def begin(self, *, step: int) -> None:
        """Takes the trainer's state as it is now, after `step` optimizer batches; `save` of the same step completes it."""
        await self.settle()
        temporary = writing_place(self._folder / f"step_{step:06d}")
        self._begun = step, False
        try:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            await self._trainer.begin_save(temporary / "trainer")
        except (OSError, CheckpointError) as error:
            self._fail(temporary, error)
            return
        self._begun = step, True

    async def save(self, *, step: int, driver: dict[str, Any]) -> None:
        """Saves the state after `step` optimizer batches as it is now; with `trainer.async_save` it is written afterwards.

        The trainer's is that of `begin`, if that was called for this step. A thread writes `driver`: nothing in it may change.
        """
        if self._begun[0] != step:
            await self.begin(step=step)
        (_, is_begun), self._begun = self._begun, (None, False)
        if not is_begun:
            return  # which was told
        final = self._folder / f"step_{step:06d}"
        temporary = writing_place(final)
        try:
            await asyncio.to_thread(_write_driver, temporary, {"step": step, **driver})
        except OSError as error:
            with contextlib.suppress(CheckpointError):  # of the same full disk
                await self._trainer.finish_save()
            self._fail(temporary, error)
            return
        self._writing = asyncio.create_task(self._finish(temporary, final))
        if not self._config.async_save:
            await self.settle()

    async def check(self) -> None:
        """Tells of a save that has ended; does not wait for one that has not."""
        if self._writing is not None and self._writing.done():
            await self.settle()

    async def settle(self) -> None:
        """Waits until the save under way, if there is one, has ended."""
        writing = self._writing
        if writing is None:
            return
        await asyncio.wait([writing])  # which goes on if this wait is cancelled
        if self._writing is not writing:
            return  # another waited for it too, and was told
        self._writing = None
        try:
            writing.result()
        except (CheckpointError, OSError) as error:
            self._fail(None, error)

    async def close(self, *, failed: bool) -> None:
        """`settle` at the end of a run; in one that has failed already, a failed save is only logged."""
        self._closing.set()
        try:
            await self.settle()
        except VimeError as error:
            if not failed:
                raise
            logger.warning("the checkpoint that was being written is lost: %s", error)

    async def note_scores(self, *, step: int, scores: dict[str, float]) -> None:
        """Keeps the checkpoint of `step` from now on if `trainer.keep_best` is higher in `scores` than ever before."""
        metric = self._config.keep_best
        if metric is None:
            return
        await self.settle()
        value = scores[metric] if metric in scores else sum(scores.values()) / len(scores)
        best = self._best()
        if (self._folder / f"step_{step:06d}").exists() and (best is None or value > best["value"]):
            write_text(self._folder / BEST_FILE, json.dumps({"step": step, "metric": metric, "value": value}))

    async def load(self, path: Path) -> dict[str, Any]:
        """Restores the trainer and returns what `save` was given as `driver`, with its `step`.

        Raises `CheckpointError` if a part is missing or damaged.
        """
        file = path / DRIVER_FILE
        try:
            content = file.read_bytes()
            intact = _new_digest(content).hexdigest() == (path / DIGEST_FILE).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{file} cannot be read ({error}): {ADVICE}") from error
        if not intact:
            raise CheckpointError(f"{file} is damaged: its checksum is not the one that was written; {ADVICE}")
        await self._trainer.load(path / "trainer")
        return from_json(content)

    async def _finish(self, temporary: Path, final: Path) -> None:
        try:
            while not self._closing.is_set() and not await self._trainer.is_saved():
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._closing.wait(), POLL_SECONDS)
            await self._trainer.finish_save()
            put_in_place(temporary, final)
        except (CheckpointError, OSError):
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        self._remove_old()

    def _fail(self, temporary: Path | None, error: Exception) -> None:
        """Makes room, and ends the run or goes on without this checkpoint."""
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
        newest = self.newest()
        left = f"{newest} is whole" if newest else "there is none before it"
        text = f"the checkpoint was not saved, {left}: {error}"
        if self._config.stop_on_failed_save:
            raise CheckpointError(text) from error
        self._warn(text)

    def _remove_old(self) -> None:
        """Removes all checkpoints but the newest `trainer.keep_checkpoints` and the best."""
        best = self._best()
        for old in self._complete()[: -self._config.keep_checkpoints]:
            if best is None or old.name != f"step_{best['step']:06d}":
                remove(old)

    def _best(self) -> dict[str, Any] | None:
        """The best checkpoint so far by the metric of this run, None without one."""
        file = self._folder / BEST_FILE
        if not file.exists():
            return None
        best = json.loads(file.read_text())
        is_there = (self._folder / f"step_{best['step']:06d}").exists()
        return best if is_there and best["metric"] == self._config.keep_best else None

    def _complete(self) -> list[Path]:
        return _complete(self._folder)


def newest_driver(folder: Path) -> dict[str, Any] | None:
    """The `driver` that `Checkpoints.save` was given for the newest checkpoint in `folder`; None if there is none to be read.

    It is for checks before anything starts; `Checkpoints.load` refuses damaged files.
    """
    try:
        return from_json((_complete(folder)[-1] / DRIVER_FILE).read_bytes())
    except (IndexError, OSError, ValueError):
        return None


def _complete(folder: Path) -> list[Path]:
    found = [path for path in folder.glob("step_*") if (path / DRIVER_FILE).exists()]
    return sorted(found, key=lambda path: (len(path.name), path.name))


def _write_driver(temporary: Path, driver: dict[str, Any]) -> None:
    digest = _new_digest()
    with (temporary / DRIVER_FILE).open("wb") as file:
        for piece in json_pieces(driver, depth=SLOT_DEPTH):
            file.write(piece)
            digest.update(piece)
        file.flush()
        os.fsync(file.fileno())
    with (temporary / DIGEST_FILE).open("w") as file:
        file.write(digest.hexdigest())
        file.flush()
        os.fsync(file.fileno())


def _new_digest(content: bytes = b"") -> "hashlib.blake2b":
    return hashlib.blake2b(content, digest_size=16)
