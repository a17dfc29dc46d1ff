"""An index on disk of all rollouts of a run, which follows its files as they grow and writes nothing into its folder.

Each entry has the file and the place of its line; the line itself stays in the file. Step files are replaced whole and items of
evaluations are appended, so a file is read on from where it was read last, or anew if it is another one under the same name.
Offset and entries change in one transaction: a viewer that is killed leaves an index that equals a beginning of the files.
"""

import hashlib
import logging
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

from vime.surroundings import cache_folder
from vime.view.index_entry import IndexEntry, entry_of, read_line

logger = logging.getLogger(__name__)

FORMAT = 2
"""Indexes of another format are made anew."""
PATTERNS = ("rollouts/step_*.jsonl", "evaluation/*.jsonl")
BATCH_BYTES = 8 * 2**20
"""Bytes of a file that are read in one transaction."""
MARK_BYTES = 4096
"""Bytes at either end of the part of a file that was read; a hash of them identifies the file."""
State = tuple[int, int, int]
"""Inode, size and time of change of a file."""
SCHEMA = """
CREATE TABLE files (id INTEGER PRIMARY KEY, path TEXT UNIQUE, num_bytes INTEGER, mark BLOB) STRICT;
CREATE TABLE rollouts (
    id INTEGER PRIMARY KEY AUTOINCREMENT, file INTEGER, start INTEGER, size INTEGER, kind TEXT, step INTEGER, dataset TEXT,
    condition TEXT, item INTEGER, run INTEGER, label TEXT, group_index INTEGER, rollout_id INTEGER, reward REAL,
    advantage REAL, stop_reason TEXT, failed INTEGER, num_turns INTEGER, num_tokens INTEGER, seconds REAL
) STRICT;
CREATE TABLE tools (tool TEXT, rollout INTEGER, PRIMARY KEY (tool, rollout)) STRICT, WITHOUT ROWID;
CREATE INDEX rollouts_file ON rollouts (file);
CREATE INDEX rollouts_step ON rollouts (step);
CREATE INDEX rollouts_reward ON rollouts (reward);
CREATE INDEX rollouts_group ON rollouts (group_index);
CREATE INDEX rollouts_item ON rollouts (dataset, item);
CREATE INDEX rollouts_names ON rollouts (kind, dataset, condition, label, stop_reason);
CREATE INDEX rollouts_stop ON rollouts (stop_reason);
CREATE INDEX rollouts_tokens ON rollouts (num_tokens);
CREATE VIRTUAL TABLE texts USING fts5 (text, content='', tokenize="unicode61 remove_diacritics 2 tokenchars '_'");
"""
COLUMNS = (
    *("kind", "step", "dataset", "condition", "item", "run", "label", "group_index", "rollout_id", "reward", "advantage"),
    *("stop_reason", "failed", "num_turns", "num_tokens", "seconds"),
)


class RolloutIndex:
    """The index of one run folder; `update` brings it up to date. Each thread opens its own `connection`."""

    def __init__(self, run: Path, folder: Path | None = None) -> None:
        self.run = run.resolve()
        folder = folder or cache_folder("view")
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{hashlib.blake2b(str(self.run).encode(), digest_size=12).hexdigest()}.sqlite"
        self._known: dict[str, State] = {}
        """The files as they were when they were last read to their ends, so that nothing new costs no query."""
        self.problems: dict[str, str] = {}
        """Files with an unreadable line, and the reason; everything before its batch is indexed."""
        self._prepare()

    def connection(self) -> sqlite3.Connection:
        """A connection that cannot write."""
        return sqlite3.connect(f"file:{self.path}?mode=ro", uri=True)

    def update(self, *, max_bytes: int | None = None) -> int:
        """Reads the parts of the files that are not indexed yet; returns the number of bytes read.

        It ends early once `max_bytes` are read, so that a caller can do other things in between. A file with a line that cannot
        be read is named in `problems` and read again once it has changed; the others are not held up by it.
        """
        files = {str(path.relative_to(self.run)): path for path in rollout_files(self.run)}
        states = {name: _state(path) for name, path in files.items()}
        present = {name: state for name, state in states.items() if state is not None}
        if present == self._known:
            return 0
        read = 0
        with closing(self._writer()) as database:
            self._forget(database, present=set(present))
            for name, state in present.items():
                if self._known.get(name) == state:
                    continue
                self.problems.pop(name, None)
                while max_bytes is None or read < max_bytes:
                    if not (more := self._try(database, name, files[name])):
                        self._known[name] = state
                        break
                    read += more
            self.problems = {name: why for name, why in self.problems.items() if name in present}
            self._known = {name: state for name, state in self._known.items() if name in present}
        return read

    def _try(self, database: sqlite3.Connection, name: str, path: Path) -> int:
        """`_read_on`, which a line that cannot be read ends with a problem and 0."""
        try:
            return self._read_on(database, name, path)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            database.execute("ROLLBACK")
            self.problems[name] = f"{type(error).__name__}: {error}"
            logger.warning("%s is not read to its end: %s", path, self.problems[name])
            return 0

    def _prepare(self) -> None:
        with closing(self._writer()) as database:
            if database.execute("PRAGMA user_version").fetchone()[0] == FORMAT:
                return
        for path in self.path.parent.glob(f"{self.path.name}*"):
            path.unlink(missing_ok=True)
        with closing(self._writer()) as database:
            database.execute("PRAGMA journal_mode = WAL")
            database.executescript(f"BEGIN IMMEDIATE; {SCHEMA} PRAGMA user_version = {FORMAT}; COMMIT;")

    def _writer(self) -> sqlite3.Connection:
        database = sqlite3.connect(self.path, timeout=60.0, isolation_level=None)
        database.execute("PRAGMA synchronous = OFF")  # an index that a power failure damages is made anew
        database.execute("PRAGMA cache_size = -32768")
        return database

    def _forget(self, database: sqlite3.Connection, *, present: set[str]) -> None:
        """Drops the entries of files that are no longer there."""
        indexed = {name for (name,) in database.execute("SELECT path FROM files")}
        for name in sorted(indexed - present):
            database.execute("BEGIN IMMEDIATE")
            self._drop(database, name)
            database.execute("COMMIT")

    def _drop(self, database: sqlite3.Connection, name: str) -> None:
        """Drops the entries of a file.

        Their texts stay in the full-text index under ids that are never used again. No search finds them, because results are
        joined with entries.
        """
        row = database.execute("SELECT id FROM files WHERE path = ?", (name,)).fetchone()
        if row is not None:
            database.execute("DELETE FROM tools WHERE rollout IN (SELECT id FROM rollouts WHERE file = ?)", row)
            database.execute("DELETE FROM rollouts WHERE file = ?", row)
            database.execute("DELETE FROM files WHERE id = ?", row)

    def _read_on(self, database: sqlite3.Connection, name: str, path: Path) -> int:
        """Indexes the next whole lines of a file; returns how many bytes they take, 0 at its end."""
        try:
            file = path.open("rb")
        except FileNotFoundError:  # removed since it was listed
            return 0
        with file:
            database.execute("BEGIN IMMEDIATE")
            row = database.execute("SELECT id, num_bytes, mark FROM files WHERE path = ?", (name,)).fetchone()
            if row is not None and row[2] != _mark(file, row[1]):
                self._drop(database, name)
                row = None
            if row is None:
                database.execute("INSERT INTO files (path, num_bytes) VALUES (?, 0)", (name,))
                row = database.execute("SELECT id, num_bytes FROM files WHERE path = ?", (name,)).fetchone()
            end = row[1]
            for start, line in _lines(file, start=row[1]):
                end = start + len(line)
                if line.strip():
                    self._insert(database, row[0], start, len(line), entry_of(read_line(line)))
            database.execute("UPDATE files SET num_bytes = ?, mark = ? WHERE id = ?", (end, _mark(file, end), row[0]))
            database.execute("COMMIT")
        return end - row[1]

    def _insert(self, database: sqlite3.Connection, file: int, start: int, size: int, entry: IndexEntry) -> None:
        values = [getattr(entry, column) for column in COLUMNS]
        places = ", ".join("?" * (len(COLUMNS) + 3))
        sql = f"INSERT INTO rollouts (file, start, size, {', '.join(COLUMNS)}) VALUES ({places})"
        rollout = database.execute(sql, (file, start, size, *values)).lastrowid
        database.execute("INSERT INTO texts (rowid, text) VALUES (?, ?)", (rollout, entry.text))
        database.executemany("INSERT INTO tools VALUES (?, ?)", [(tool, rollout) for tool in entry.tools])


def rollout_files(run: Path) -> list[Path]:
    """The files of rollouts and items in a resolved run folder; links that lead outside of it are left out."""
    folders = [pattern.partition("/") for pattern in PATTERNS]
    found = [(run / folder, name) for folder, _, name in folders if (run / folder).resolve().is_relative_to(run)]
    return [path for folder, name in found for path in sorted(folder.glob(name))]


def _state(path: Path) -> State | None:
    """The state of a file; None if it was removed since it was listed, or is not a plain file."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _mark(file: BinaryIO, num_bytes: int) -> bytes:
    """The mark of a file that was read up to here: a digest of its beginning and of the end of that part."""
    file.seek(0)
    first = file.read(min(MARK_BYTES, num_bytes))
    file.seek(max(num_bytes - MARK_BYTES, 0))
    return hashlib.blake2b(first + file.read(min(MARK_BYTES, num_bytes)), digest_size=12).digest()


def _lines(file: BinaryIO, *, start: int) -> Iterator[tuple[int, bytes]]:
    """Whole lines from `start` on with the places where they begin, up to about `BATCH_BYTES`."""
    file.seek(start)
    place = start
    while place < start + BATCH_BYTES and (line := file.readline()).endswith(b"\n"):
        yield place, line
        place += len(line)
