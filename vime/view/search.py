"""Counts the rollouts that pass a search and reads some of them, in the way that looks at the fewest rows.

Conditions on columns cost little. A tool and words are in lists of their own, and can be used in two ways: the list is walked
through and each of its rollouts looked up, or it is asked about each rollout that passes the conditions on columns. The second
is better where few do, or where the first rollouts in the wanted order are likely to be in the list.
"""

import sqlite3
from dataclasses import dataclass
from typing import Any

from vime.view.rollout_index import COLUMNS

MAX_ASKED_TEXT, MAX_ASKED_TOOL = 4_000, 100_000
"""Maximum rollouts looked up one by one in the list of a word, or of a tool; walking through a million takes as long."""
WINDOW = 2_000
"""The number of first rollouts in the wanted order that are tried before a list is walked through for a page."""
TEXT, TOOL = "texts MATCH ?", "tool = ?"
ASKED_TEXT = f"EXISTS (SELECT 1 FROM texts WHERE {TEXT} AND texts.rowid = rollouts.id)"
ASKED_TOOL = f"EXISTS (SELECT 1 FROM tools WHERE {TOOL} AND rollout = rollouts.id)"
LISTED_TOOL = f"rollouts.id IN (SELECT rollout FROM tools WHERE {TOOL})"
WALKED_TEXT = "texts CROSS JOIN rollouts ON rollouts.id = texts.rowid"
WALKED_TOOL = "tools CROSS JOIN rollouts ON rollouts.id = tools.rollout"
READ = ", ".join(f"rollouts.{column}" for column in ("id", *COLUMNS))


@dataclass(frozen=True, kw_only=True, slots=True)
class Search:
    """Conditions on rollouts: on columns, with the values of their question marks, a tool's number, words for FTS5.

    Example: `Search(columns=("min_step >= ?",), values=(40,), tool=7, match='"connection" AND "refused"')`.
    """

    columns: tuple[str, ...]
    values: tuple[Any, ...]
    tool: int | None
    match: str | None

    def page(self, database: sqlite3.Connection, *, order: str, limit: int, offset: int) -> tuple[int, list[tuple[Any, ...]]]:
        """The number of rollouts, and `limit` of them from `offset` on: their ids and `COLUMNS`."""
        num = _count(database, f"rollouts{_where(self.columns)}", self.values)
        is_asked = num <= self._max_asked()
        source, values = self._asked() if is_asked else self._walked()
        total = num if self._is_plain() else self._total(database, num) if not is_asked else _count(database, source, values)
        wanted = max(0, min(limit, total - offset))
        if wanted and not is_asked and (offset + limit) * num / total <= WINDOW:
            rows = self._first(database, order, limit, offset)
            if len(rows) == wanted:
                return total, rows
        sql = f"SELECT {READ} FROM {source} {order} LIMIT ? OFFSET ?"
        return total, database.execute(sql, (*values, limit, offset)).fetchall() if wanted else []

    def _is_plain(self) -> bool:
        return self.tool is None and self.match is None

    def _max_asked(self) -> float:
        limits = [limit for limit, given in ((MAX_ASKED_TEXT, self.match), (MAX_ASKED_TOOL, self.tool)) if given is not None]
        return min(limits, default=float("inf"))

    def _total(self, database: sqlite3.Connection, num: int) -> int:
        """The number of all, from the list alone where nothing else is asked for; `num` rollouts pass the other conditions."""
        if not self.columns and self.match is None:
            return _count(database, f"tools WHERE {TOOL}", (self.tool,))
        if not self.columns and self.tool is None:
            # texts of dropped rollouts stay in their list; ids are given once, so that none was dropped if all are there
            (last,) = database.execute("SELECT max(id) FROM rollouts").fetchone()
            if last == num:
                return _count(database, f"texts WHERE {TEXT}", (self.match,))
        return _count(database, *self._walked())

    def _first(self, database: sqlite3.Connection, order: str, limit: int, offset: int) -> list[tuple[Any, ...]]:
        """The rollouts found among the first that pass the conditions on columns."""
        window = f"(SELECT * FROM rollouts{_where(self.columns)} {order} LIMIT {WINDOW}) AS rollouts"
        terms, values = self._lists()
        sql = f"SELECT {READ} FROM {window}{_where(terms)} {order} LIMIT ? OFFSET ?"
        return database.execute(sql, (*self.values, *values, limit, offset)).fetchall()

    def _asked(self) -> tuple[str, tuple[Any, ...]]:
        terms, values = self._lists()
        return f"rollouts{_where((*self.columns, *terms))}", (*self.values, *values)

    def _walked(self) -> tuple[str, tuple[Any, ...]]:
        if self.match is None:
            return f"{WALKED_TOOL}{_where((TOOL, *self.columns))}", (self.tool, *self.values)
        if self.tool is None:
            return f"{WALKED_TEXT}{_where((TEXT, *self.columns))}", (self.match, *self.values)
        return f"{WALKED_TEXT}{_where((TEXT, *self.columns, LISTED_TOOL))}", (self.match, *self.values, self.tool)

    def _lists(self) -> tuple[tuple[str, ...], tuple[Any, ...]]:
        """Conditions that ask the lists, and their values."""
        given = [(term, value) for term, value in ((ASKED_TEXT, self.match), (ASKED_TOOL, self.tool)) if value is not None]
        return tuple(term for term, _ in given), tuple(value for _, value in given)


def _where(terms: tuple[str, ...]) -> str:
    return f" WHERE {' AND '.join(terms)}" if terms else ""


def _count(database: sqlite3.Connection, source: str, values: tuple[Any, ...]) -> int:
    return database.execute(f"SELECT count(*) FROM {source}", values).fetchone()[0]
