"""The runs that a viewer shows: those in the folders that it was given, by name, and nothing else."""

import functools
import hashlib
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar, cast

from vime.config import TRY
from vime.files.jsonl import read_lines
from vime.report.ending import ENDED, RunEnding, read_ending
from vime.report.run_directory import CONFIG, LOCK, METRICS, STATUS, is_written, read_config
from vime.report.summary import SCORES, SUMMARY
from vime.view.query import facets
from vime.view.rollout_index import RolloutIndex

DEPTH = 4
"""Maximum depth of runs below a folder: `outputs/<name>/<time>/<number in the sweep>`, `…/<time>/adapters/<name>`,
`…/<time>/runs/<model of a service>`."""
LOOK_SECONDS = 2.0
"""Seconds between two searches for new runs."""
UPDATE_BYTES = 8 * 2**20
"""Bytes that are indexed before a request is answered; the page asks again for the rest."""
RUNNING = "running"
WATCHED = (METRICS, STATUS, "faults.jsonl", SCORES, SUMMARY, ENDED, CONFIG, LOCK, "rollouts", "evaluation")


Found = TypeVar("Found")


class Run:
    """One run folder and the index of its rollouts, which lies in the user's cache."""

    def __init__(self, name: str, path: Path) -> None:
        self.name, self.path = name, path
        self._lock = threading.Lock()
        self._index: RolloutIndex | None = None
        self._kept: dict[str, tuple[str, Any]] = {}

    def indexed(self) -> tuple[RolloutIndex, bool]:
        """The index after another part of the files was read, and whether there is more to read."""
        with self._lock:
            self._index = self._index or RolloutIndex(self.path)
            return self._index, self._index.update(max_bytes=UPDATE_BYTES) >= UPDATE_BYTES

    def facets(self) -> dict[str, Any]:
        """The values to filter by, asked for only when the run has changed; `more`: files are still being read."""
        index, more = self.indexed()

        def ask() -> dict[str, Any]:
            with closing(index.connection()) as database:
                return facets(database)

        return {**self.kept(f"facets, {more}", ask), "more": more}

    def kept(self, name: str, find: Callable[[], Found]) -> Found:
        """The result of `find` under this name; it is called again only when the run has changed."""
        now = self.fingerprint()
        seen, found = self._kept.get(name, ("", None))
        if seen != now:
            found = find()
            self._kept[name] = (now, found)
        return cast(Found, found)

    def file(self, name: str) -> Path:
        """A file of the run. Raises FileNotFoundError for one that is not there or lies outside, also behind a link."""
        path = (self.path / name).resolve()
        if not path.is_relative_to(self.path) or not path.is_file():
            raise FileNotFoundError(f"{self.name} has no file {name!r}")
        return path

    def lines(self, name: str) -> list[dict[str, Any]]:
        """The whole rows of a file of the run; an empty list if there is none."""
        try:
            return read_lines(self.file(name))
        except FileNotFoundError:
            return []

    def fingerprint(self) -> str:
        """A text that changes when files do that a page shows; it costs a few `stat` calls."""
        paths = [self.path / name for name in WATCHED]
        folder = self.path / "evaluation"
        paths += sorted(Path(entry) for entry in os.scandir(folder)) if folder.is_dir() else []
        digest = hashlib.blake2b(digest_size=8)
        for path in paths:
            try:
                found = path.stat()
            except FileNotFoundError:
                continue
            digest.update(f"{path.name} {found.st_ino} {found.st_size} {found.st_mtime_ns}\n".encode())
        return digest.hexdigest() + self.state()

    def state(self) -> str:
        """`finished`, `running` (by a process of this machine), `failed`, `interrupted`, `tried`, or `unfinished` (killed)."""
        if (self.path / SUMMARY).exists():
            return "finished"
        ending = self.ending()
        if self._is_written():
            return RUNNING
        return ending.state if ending is not None else "tried" if self._is_try else "unfinished"

    @functools.cached_property
    def _is_try(self) -> bool:
        """True if one prompt was tried (`mode=try`), which leaves its rollout and no summary."""
        return read_config(self.path)["mode"] == TRY.value

    def ending(self) -> RunEnding | None:
        """The way in which the run ended, if it did before its time and was not killed."""
        try:
            self.file(ENDED)
        except FileNotFoundError:
            return None
        return read_ending(self.path)

    def _is_written(self) -> bool:
        """True if a process of this machine writes there."""
        return is_written(self.path) is True


class Runs:
    """The runs in some folders; a folder contributes the runs below it too, including later ones."""

    def __init__(self, folders: list[Path]) -> None:
        """Raises FileNotFoundError, naming it, for a folder that does not exist."""
        for folder in folders:
            if not folder.is_dir():
                raise FileNotFoundError(f"{folder} is no folder")
        self._folders = [folder.resolve() for folder in folders]
        self._lock = threading.Lock()
        self._runs: dict[Path, Run] = {}
        self._looked = -LOOK_SECONDS

    def all(self) -> list[Run]:
        """The runs, those that were started last first."""
        with self._lock:
            if time.monotonic() - self._looked >= LOOK_SECONDS:
                names = self._names()
                self._runs = {path: self._runs.get(path) or Run(name, path) for path, name in names.items()}
                self._looked = time.monotonic()
            return list(self._runs.values())

    def _names(self) -> dict[Path, str]:
        """The runs by path, newest configuration first. If two have the same name, the differing part of their paths is added."""
        found = {path: name for folder in self._folders for path, name in _runs_in(folder).items()}
        num_called = Counter(found.values())
        above = Path(os.path.commonpath(self._folders))
        named = {path: name if num_called[name] == 1 else str(path.relative_to(above)) for path, name in found.items()}
        return {path: named[path] for path in sorted(found, key=_started, reverse=True)}

    def get(self, name: str) -> Run:
        """The run of this name. Raises FileNotFoundError for any other text: names are looked up and never joined to a path."""
        for run in self.all():
            if run.name == name:
                return run
        raise FileNotFoundError(f"there is no run {name!r} here")


def _runs_in(folder: Path) -> dict[Path, str]:
    """Run folders by path with their names; links that lead out of the folder are not followed."""
    found, above = dict[Path, str](), folder
    if (folder / CONFIG).exists() and _is_whole(folder):
        found[folder] = f"{folder.parent.name}/{folder.name}"
        above = folder.parent.parent
    for depth in range(1, DEPTH + 1):
        for file in folder.glob("/".join(["*"] * depth) + f"/{CONFIG}"):
            run = file.parent.resolve()
            if run.is_relative_to(folder) and run.parent.name != "earlier" and _is_whole(run):
                found[run] = str(run.relative_to(above))
    return found


def _started(run: Path) -> float:
    """The time when its configuration was written; 0 if it is gone."""
    try:
        return (run / CONFIG).stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _is_whole(run: Path) -> bool:
    """True if the files that say what a run is lie in it, and not behind a link elsewhere."""
    return all((run / name).resolve().is_relative_to(run) for name in (CONFIG, SUMMARY, SCORES))
