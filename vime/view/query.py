"""Finds rollouts in an index: filters, order, pages, and what there is to filter by."""

import re
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from vime.view.rollout_index import COLUMNS

SORTS = ("step", "reward", "advantage", "num_tokens", "num_turns", "seconds", "item")
SPARSE = ("advantage", "seconds")
"""Columns without an index in which some rollouts have no value; these rollouts come last in any order."""
MAX_LIMIT = 1000
NAMES = ("kind", "dataset", "condition", "label", "stop_reason")
READ = ("id", *COLUMNS)


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
TERMS = {
    **{f"min_{name}": f"{column} >= ?" for name, column in RANGES.items()},
    **{f"max_{name}": f"{column} <= ?" for name, column in RANGES.items()},
    "tool": "id IN (SELECT rollout FROM tools WHERE tool = ?)",
    "text": "id IN (SELECT rowid FROM texts WHERE texts MATCH ?)",
}
"""The conditions of filters that are not values of a column."""


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
    order = f"{sort} {direction}{last}, id {direction}" if sort else f"id {direction}"
    terms = _terms(filters)
    source, values = f"FROM rollouts WHERE {' AND '.join(['TRUE', *terms])}", tuple(terms.values())
    (total,) = database.execute(f"SELECT count(*) {source}", values).fetchone()
    sql = f"SELECT {', '.join(READ)} {source} ORDER BY {order} LIMIT ? OFFSET ?"
    found = database.execute(sql, (*values, min(limit, MAX_LIMIT), offset)) if offset < total else []
    return Page(total=total, rows=[dict(zip(READ, row, strict=True)) for row in found])


def facets(database: sqlite3.Connection) -> dict[str, Any]:
    """The names that occur, and the ends of numbers."""
    together = database.execute(f"SELECT DISTINCT {', '.join(NAMES)} FROM rollouts").fetchall()
    found: dict[str, Any] = {column: sorted({names[place] for names in together} - {""}) for place, column in enumerate(NAMES)}
    found["tool"] = [tool for (tool,) in database.execute("SELECT DISTINCT tool FROM tools ORDER BY tool")]
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


def _terms(filters: Filters) -> dict[str, Any]:
    """The filters as conditions in SQL, each with the value of its question mark."""
    given = {field.name: value for field in fields(filters) if (value := getattr(filters, field.name)) is not None}
    if "text" in given:
        given["text"] = _match(given["text"])
    return {TERMS.get(name, f"{name} = ?"): value for name, value in given.items()}


def _match(text: str) -> str:
    """A search in FTS5's language in which nothing is an operator but quotes and an asterisk at the end of a word."""
    found = re.findall(r'"([^"]*)"?|(\S+)', text)
    words = [(phrase or word).replace('"', "") for phrase, word in found]
    terms = ['"' + word.rstrip("*") + '"' + ("*" if word.endswith("*") else "") for word in words if word.strip("*")]
    return " AND ".join(terms) or '""'
