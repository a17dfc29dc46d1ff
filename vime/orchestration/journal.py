"""Finished groups on disk from the moment they finish, so that a run that is killed between two checkpoints does not lose them.

A part of the journal begins with every checkpoint: `step_000012.jsonl` holds the groups that finished since the state of step 12
was taken.
"""

import asyncio
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from vime.files.serialization import from_json, to_json
from vime.types import Group

logger = logging.getLogger(__name__)


class Journal:
    """The journal in one folder; `recall` after a resumed start, `begin` with every checkpoint, `add` in between."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._recalled: dict[tuple[int, int], Group] = {}
        self._step: int | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal")

    def begin(self, step: int, *, oldest_step: int | None = None) -> None:
        """Begins a new part for groups that are not in the checkpoint of `step`; deletes parts before `oldest_step`."""
        self._step = step
        for path in self._parts():
            if oldest_step is not None and path < self._path(oldest_step):
                path.unlink(missing_ok=True)

    async def add(self, group: Group) -> None:
        """Writes a finished group, in a thread, if a run resumed from the last checkpoint could use it.

        On a full disk the run goes on; the group is then in memory alone.
        """
        if self._step is None or newest_version(group) > self._step:
            return
        writing = self._thread.submit(self._write, self._path(self._step), group)
        await asyncio.shield(asyncio.wrap_future(writing))  # written also if nobody waits for it any more

    async def settle(self) -> None:
        """Waits until everything that was added is written."""
        await asyncio.wrap_future(self._thread.submit(lambda: None))

    def _write(self, path: Path, group: Group) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as file:
                file.write(_line(group))
        except OSError as error:
            logger.warning("%s cannot be written (%s): were the run killed now, a group would be generated again", path, error)

    def recall(self, step: int) -> int:
        """Reads the groups that finished after the checkpoint of `step` under its weights or older ones; returns how many groups.

        What was sampled from later weights is left out: those weights were lost with the steps that made them.
        """
        self._recalled = {}
        later = [path for path in self._parts() if path >= self._path(step)]
        for path in later:
            for line in path.read_bytes().split(b"\n")[:-1]:  # what follows the last line break is torn
                try:
                    group = Group.from_dict(from_json(line))
                except ValueError:  # torn by a full disk
                    continue
                if newest_version(group) <= step:
                    self._recalled[group.index, group.prompt.index] = group
        self._replace(later, step)
        return len(self._recalled)

    def take(self, slot: int, prompt_index: int) -> Group | None:
        """The group that had finished for a slot and its prompt, once."""
        return self._recalled.pop((slot, prompt_index), None)

    def _replace(self, parts: list[Path], step: int) -> None:
        """Moves the recalled groups to the part of `step`: later parts will be written again when their steps are repeated."""
        if not parts:
            return
        temporary = self._folder / f".{os.getpid()}"
        temporary.write_bytes(b"".join(map(_line, self._recalled.values())))
        temporary.replace(self._path(step))
        for path in parts:
            if path != self._path(step):
                path.unlink()

    def _parts(self) -> list[Path]:
        return sorted(self._folder.glob("step_*.jsonl"))

    def _path(self, step: int) -> Path:
        return self._folder / f"step_{step:06d}.jsonl"


def _line(group: Group) -> bytes:
    return to_json(group.to_dict(), compact=True) + b"\n"


def newest_version(group: Group) -> int:
    """The weight version of its newest token, trained or not."""
    versions = (version for rollout in group.rollouts for sample in rollout.samples for version in sample.versions)
    return max(versions, default=group.weight_version)
