"""`Journal`: sessions, models and calls of a service on disk, from which a service that was killed goes on.

It is one SQLite database (https://sqlite.org/wal.html). A call is written when it arrives and once more with its result, so that
it survives the end of this process at any moment; only the end of the machine may cost the last calls, which clients make again.
The weights are not in it: they come from the last saved state of a model and the calls since then.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from vime.errors import ConfigError, Problem

FILE = "journal.sqlite"
SCHEMA = """
create table if not exists sessions (id text primary key, owner text not null, metadata text not null);
create table if not exists samplers (id text primary key, about text not null);
create table if not exists lines (id text primary key, next integer not null, is_over integer not null default 0);
create table if not exists calls (
    id text primary key, owner text not null, route text not null, line text not null, number integer not null,
    body blob, kind text, result blob, num_losses integer not null default 0, was_fetched integer not null default 0
);
create index if not exists calls_of_lines on calls (line, number);
"""
PRAGMAS = ("locking_mode=exclusive", "journal_mode=wal", "synchronous=normal", f"journal_size_limit={2**26}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The end of a call: `data` is its result as JSON or protobuf, or the reason of a failure that user or server can mend."""

    kind: str
    data: bytes


JSON, PROTOBUF, USER, SERVER = "json", "protobuf", "user", "server"
"""Kinds of outcomes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A call as it came; those of no line have an empty one."""

    id: str
    owner: str
    route: str
    line: str
    number: int
    num_losses: int
    """Losses of the trainer during this call."""


class Journal:
    """The database. Every method is one transaction."""

    def __init__(self, folder: Path) -> None:
        """Raises ConfigError if another service uses the folder."""
        self._database = sqlite3.connect(folder / FILE, isolation_level=None, timeout=1.0)
        try:
            for pragma in PRAGMAS:
                self._database.execute(f"pragma {pragma}")
            self._database.executescript(SCHEMA)
        except sqlite3.OperationalError as error:
            remedy = f"another service uses this folder ({error}): end it, or give another folder"
            raise ConfigError([Problem(key="output_dir", value=str(folder), remedy=remedy)]) from error

    def close(self) -> None:
        """Closes the file."""
        self._database.close()

    # Sessions and samplers

    def add_session(self, id: str, owner: str, metadata: str) -> None:
        """Notes a session; `metadata` is JSON."""
        self._database.execute("insert into sessions values (?, ?, ?)", (id, owner, metadata))

    def sessions(self) -> list[tuple[str, str, str]]:
        """All sessions: id, owner, metadata."""
        return self._database.execute("select id, owner, metadata from sessions").fetchall()

    def remove_session(self, id: str) -> None:
        """Forgets a session, and all whose ids begin with its own."""
        below = (f"{id}:", f"{id};")  # the character after the colon
        with self._transaction() as database:
            database.execute("delete from sessions where id = ?", (id,))
            for table in ("samplers", "lines", "calls"):
                database.execute(f"delete from {table} where id >= ? and id < ?", below)

    def note_sampler(self, id: str, about: str) -> None:
        """Notes the weights of a sampler; `about` is JSON."""
        self._database.execute("insert or replace into samplers values (?, ?)", (id, about))

    def samplers(self) -> list[tuple[str, str]]:
        """All samplers: id, weights."""
        return self._database.execute("select id, about from samplers order by rowid").fetchall()

    # Lines

    def begin(self, line: str, *, first: int) -> None:
        """Notes a line, unless it is known."""
        self._database.execute("insert or ignore into lines (id, next) values (?, ?)", (line, first))

    def lines(self) -> list[tuple[str, int, bool]]:
        """All lines: id, number of the next call, and True if its model is no more."""
        return [(id, next, bool(is_over)) for id, next, is_over in self._database.execute("select * from lines order by rowid")]

    def forget_changes(self, line: str, *, until: int) -> None:
        """Forgets the bodies of calls up to this number, whose effect a saved state has."""
        with self._transaction() as database:
            self._forget(database, line, until)

    # Calls

    def add(self, entry: Entry, body: bytes) -> None:
        """Notes a call."""
        values = (entry.id, entry.owner, entry.route, entry.line, entry.number, body)
        self._database.execute("insert into calls (id, owner, route, line, number, body) values (?, ?, ?, ?, ?, ?)", values)

    def has(self, id: str) -> bool:
        """True if a call of this id is known."""
        return self._database.execute("select 1 from calls where id = ?", (id,)).fetchone() is not None

    def body(self, id: str) -> bytes:
        """The body of a call that is not over, or is to be made again."""
        return self._database.execute("select body from calls where id = ?", (id,)).fetchone()[0]

    def open_calls(self) -> list[Entry]:
        """The calls without an outcome, in the order of their numbers."""
        return self._entries("kind is null order by line, number", ())

    def to_repeat(self, line: str) -> list[Entry]:
        """The calls of a line that have changed the weights since the last saved state, in the order of their numbers."""
        return self._entries("line = ? and kind is not null and body is not null order by number", (line,))

    def note_loss(self, id: str) -> None:
        """Notes that the trainer was lost during a call."""
        self._database.execute("update calls set num_losses = num_losses + 1 where id = ?", (id,))

    def finish(self, entry: Entry, outcome: Outcome, *, is_repeated: bool, ends_line: bool) -> None:
        """Notes the outcome of a call. If it `is_repeated`, it is made again after a loss of the trainer."""
        with self._transaction() as database:
            kept = "body" if is_repeated else "null"
            values = (outcome.kind, outcome.data, entry.id)
            database.execute(f"update calls set kind = ?, result = ?, body = {kept} where id = ?", values)
            database.execute(
                "update lines set next = ?, is_over = max(is_over, ?) where id = ?", (entry.number + 1, ends_line, entry.line)
            )
            if ends_line:
                self._forget(database, entry.line, entry.number)

    def outcome(self, id: str, *, owner: str) -> Outcome | None:
        """The outcome of an owner's call, which counts as fetched; None if there is none, or no more."""
        found = self._database.execute("select kind, result from calls where id = ? and owner = ?", (id, owner)).fetchone()
        if found is None or found[1] is None:
            return None
        self.note_fetched(id)
        return Outcome(kind=found[0], data=found[1])

    def note_fetched(self, id: str) -> None:
        """Notes that a client has the result of a call."""
        self._database.execute("update calls set was_fetched = 1 where id = ?", (id,))

    def num_results(self, owner: str) -> tuple[int, int]:
        """The number of an owner's results, and their bytes."""
        query = "select count(*), coalesce(sum(length(result)), 0) from calls where owner = ? and result is not null"
        return self._database.execute(query, (owner,)).fetchone()

    def forget_results(self, owner: str, *, most: int, most_bytes: int) -> None:
        """Forgets an owner's results beyond a number and a size, first those that were fetched, then the oldest."""
        number, num_bytes = self.num_results(owner)
        query = "select id, length(result) from calls where owner = ? and result is not null order by was_fetched desc, rowid"
        going = []
        for id, size in self._database.execute(query, (owner,)):
            if number <= most and num_bytes <= most_bytes:
                break
            number, num_bytes = number - 1, num_bytes - size
            going.append((id,))
        with self._transaction() as database:
            database.executemany("delete from calls where id = ? and body is null", going)
            database.executemany("update calls set result = null where id = ?", going)

    def _entries(self, where: str, values: tuple[str, ...]) -> list[Entry]:
        query = f"select id, owner, route, line, number, num_losses from calls where {where}"
        names = ("id", "owner", "route", "line", "number", "num_losses")
        return [Entry(**dict(zip(names, row, strict=True))) for row in self._database.execute(query, values)]

    def _forget(self, database: sqlite3.Connection, line: str, until: int) -> None:
        given = (line, until)
        database.execute("update calls set body = null where line = ? and number <= ? and kind is not null", given)
        database.execute("delete from calls where line = ? and number <= ? and kind is not null and result is null", given)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self._database.execute("begin immediate")
        try:
            yield self._database
        except BaseException:
            self._database.execute("rollback")
            raise
        self._database.execute("commit")
