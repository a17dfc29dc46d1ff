"""Finds rollouts in an index: filters, order, pages, and what there is to filter by."""

import re
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from vime.view.rollout_index import COLUMNS, NAMED
from vime.view.search import Search

SORTS = ("step", "reward", "advantage", "num_tokens", "num_turns", "seconds", "item")
SPARSE = ("advantage", "seconds")
"""Columns without an index in which some rollouts have no value; these rollouts come last in any order."""
MAX_LIMIT = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Filters:
    """Conditions on rollouts; one that is None does not matter.

    Example: `Filters(kind="training", min_step=40, stop_reason="time_limit", max_reward=0.0, text="connection refused")`.
    """

    kind: str | None = None
    min_step: int | None = None
    max_step: int | None = None
    dataset: str | None = None
    condition: str | None = None
    label: str | None = None
    run: int | None = None
    item: int | None = None
    group_index: int | None = None
    rollout_id: int | None = None
    min_reward: float | None = None
    max_reward: float | None = None
    min_advantage: float | None = None
    max_advantage: float | None = None
    stop_reason: str | None = None
    failed: int | None = None
    min_tokens: int | None = None
    max_tokens: int | None = None
    min_turns: int | None = None
    max_turns: int | None = None
    tool: str | None = None
    text: str | None = None
    """Words that must all occur; `word*` matches its continuations, and text in double quotes is matched literally."""

    @classmethod
    def read(cls, words: Mapping[str, str]) -> "Filters":
        """Filters as a page sends them. Raises ValueError, naming it, for a number that is none; other words are ignored."""
        values: dict[str, Any] = {}
        for field in fields(cls):
            if word := words.get(field.name, ""):
                kind = float if field.name.endswith(("reward", "advantage")) else str if "str" in str(field.type) else int
                try:
                    values[field.name] = kind(word)
                except ValueError:
                    raise ValueError(f"{field.name} is no number: {word!r}") from None
        return cls(**values)


RANGES = {"step": "step", "reward": "reward", "advantage": "advantage", "tokens": "num_tokens", "turns": "num_turns"}
"""The column of each range that is asked for."""
LOWEST = {f"min_{name}": column for name, column in RANGES.items()}
HIGHEST = {f"max_{name}": column for name, column in RANGES.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """Some of the rollouts that were found, and how many there are.

    Example: `Page(total=120, rows=[{"id": 7, "step": 3, "reward": 1.0, …}, …])`.
    """

    total: int
    rows: list[dict[str, Any]]


def find(
    database: sqlite3.Connection, filters: Filters, *, sort: str = "", descending: bool = True, limit: int = 50, offset: int = 0
) -> Page:
    """The rollouts that pass the filters, by default those that were written last first.

    Raises ValueError for an unknown order.
    """
    if sort and sort not in SORTS:
        raise ValueError(f"rollouts are not ordered by {sort!r}, but by {', '.join(SORTS)}")
    direction = "DESC" if descending else "ASC"
    last = " NULLS LAST" if sort in SPARSE else ""
    order = f"ORDER BY {sort} {direction}{last}, rollouts.id {direction}" if sort else f"ORDER BY rollouts.id {direction}"
    total, found = _search(database, filters).page(database, order=order, limit=min(limit, MAX_LIMIT), offset=offset)
    return Page(total=total, rows=_named(database, found))


def facets(database: sqlite3.Connection) -> dict[str, Any]:
    """The names that occur, and the ends of numbers."""
    names = {number: name for number, name in database.execute("SELECT id, name FROM names")}
    together = database.execute(f"SELECT DISTINCT {', '.join(NAMED)} FROM rollouts").fetchall()
    found: dict[str, Any] = {
        column: sorted({names[numbers[place]] for numbers in together} - {""}) for place, column in enumerate(NAMED)
    }
    found["tool"] = sorted(names[number] for number in _first_of_key(database, "tools", "tool"))
    for column in ("step", "reward", "num_tokens"):
        ends = [
            database.execute(f"SELECT {column} FROM rollouts ORDER BY {column} {way} LIMIT 1").fetchone()
            for way in ("ASC", "DESC")
        ]
        found[column] = [end[0] for end in ends if end is not None]
    return found


def place_of(database: sqlite3.Connection, rollout: int) -> tuple[str, int, int] | None:
    """The file of an entry, and where its line begins and how long it is; None if there is no such entry."""
    sql = "SELECT path, start, size FROM rollouts JOIN files ON files.id = file WHERE rollouts.id = ?"
    return database.execute(sql, (rollout,)).fetchone()


def _search(database: sqlite3.Connection, filters: Filters) -> Search:
    """The filters in the words of the database."""
    terms: list[tuple[str, Any]] = []
    for field in fields(filters):
        name, value = field.name, getattr(filters, field.name)
        if value is None or name in ("tool", "text"):
            continue
        if name in LOWEST or name in HIGHEST:
            terms.append((f"{LOWEST.get(name) or HIGHEST[name]} {'>=' if name in LOWEST else '<='} ?", value))
        else:
            terms.append((f"{name} = ?", _number(database, value) if name in NAMED else value))
    return Search(
        columns=tuple(term for term, _ in terms),
        values=tuple(value for _, value in terms),
        tool=None if filters.tool is None else _number(database, filters.tool),
        match=None if filters.text is None else _match(filters.text),
    )


def _match(text: str) -> str:
    """A search in FTS5's language in which nothing is an operator but quotes and an asterisk at the end of a word."""
    found = re.findall(r'"([^"]*)"?|(\S+)', text)
    words = [(phrase or word).replace('"', "") for phrase, word in found]
    terms = ['"' + word.rstrip("*") + '"' + ("*" if word.endswith("*") else "") for word in words if word.strip("*")]
    return " AND ".join(terms) or '""'


def _number(database: sqlite3.Connection, name: str) -> int:
    row = database.execute("SELECT id FROM names WHERE name = ?", (name,)).fetchone()
    return row[0] if row is not None else -1


def _named(database: sqlite3.Connection, found: list[tuple[Any, ...]]) -> list[dict[str, Any]]:
    names = {number: name for number, name in database.execute("SELECT id, name FROM names")}
    rows = [dict(zip(("id", *COLUMNS), row, strict=True)) for row in found]
    return [{key: names.get(value, "") if key in NAMED else value for key, value in row.items()} for row in rows]


def _first_of_key(database: sqlite3.Connection, table: str, column: str) -> list[int]:
    """The different values of the first column of a table's key, one jump each."""
    sql = f"""WITH RECURSIVE found(value) AS (
        SELECT min({column}) FROM {table} UNION ALL
        SELECT (SELECT min({column}) FROM {table} WHERE {column} > value) FROM found WHERE value IS NOT NULL
    ) SELECT value FROM found WHERE value IS NOT NULL"""
    return [value for (value,) in database.execute(sql)]
