"""Common parts of all of these agents: the system prompt, and a database in memory."""

import sqlite3
from contextlib import closing
from typing import Any

SYSTEM = "Ask the database . owners ( name , thing ) prices ( thing , price )"
TOOL = "query"
TABLES = {"owners": ("name", "thing"), "prices": ("thing", "price")}
MOST_TURNS = 6
MOST_TOKENS = 64
"""The token limit of one reply."""
MOST_LINES = 6
NOTHING = "( nothing )"


def query(row: dict[str, Any], sql: str) -> str:
    """The answer of a row's database: values with blanks between them, or the error in the query."""
    with closing(sqlite3.connect(":memory:")) as database:
        for table, columns in TABLES.items():
            database.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
            database.executemany(f"INSERT INTO {table} VALUES (?, ?)", row[table].items())
        try:
            found = database.execute(sql).fetchmany(MOST_LINES)
        except (sqlite3.Error, sqlite3.Warning) as error:
            return f"error : {error}"
    return " ".join(str(value) for line in found for value in line) or NOTHING
