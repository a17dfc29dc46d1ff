"""Puts new runs into a results page that has others: a run is known by its name, its seed and the words of its command."""

import re
import shlex
from typing import Any

Entry = dict[str, Any]
LISTS = ("small", "logs", "curves", "runs")
"""Lists of a page with an entry for each run."""


def merged(page: dict[str, Any], earlier: dict[str, Any] | None) -> dict[str, Any]:
    """`page` with the runs of the page that was there before; a run that both have is the new one.

    Both are as `vime.report.results_page.build_page` makes them, the earlier one `with_commands`.
    """
    if earlier is None:
        return page
    known = {identity(run) for run in page["runs"]}
    result = dict(page)
    for name in LISTS:
        kept = [entry for entry in earlier.get(name, []) if identity(entry) not in known]
        if kept or name in page:
            result[name] = [*kept, *page.get(name, [])]
    before = {table["title"]: table for table in earlier["tables"]}
    result["tables"] = [_merged_table(table, before.get(table["title"])) for table in page["tables"]]
    return result


def with_commands(page: dict[str, Any]) -> dict[str, Any]:
    """A page whose entries all have the command of their run, as older ones have not."""
    commands = {(run["run"], run["seed"]): run["command"] for run in page["runs"]}
    lists = {
        name: [{**e, "command": e.get("command", commands.get((e["run"], e["seed"]), ""))} for e in page[name]]
        for name in LISTS
        if name in page
    }
    return {**page, **lists}


def identity(entry: Entry) -> tuple[str, int, frozenset[str]]:
    """The features that tell a run from others; the order of its words, and that it was resumed, do not."""
    return entry["run"], entry["seed"], frozenset(_words(entry))


def told_apart(entry: Entry, entries: list[Entry]) -> str:
    """The words that a run has and others of its name and seed have not, `trainer.lr=3e-4`; empty if it is the only one."""
    others = [other for other in entries if (other["run"], other["seed"]) == (entry["run"], entry["seed"])]
    if len(others) < 2:
        return ""
    shared = set.intersection(*(set(_words(other)) for other in others))
    return " ".join(word for word in _words(entry) if word not in shared) or "as it is"


def file_name(method: str, entry: Entry, entries: list[Entry]) -> str:
    """The name of a run's figure, which no other run has."""
    apart = re.sub(r"[^\w.=-]+", "_", told_apart(entry, entries))
    return f"{method}_{entry['run'].removeprefix(f'{method}_')}_seed{entry['seed']}{f'_{apart}' if apart else ''}.svg"


def _words(entry: Entry) -> list[str]:
    found = shlex.split(entry.get("command", ""))
    return [word for word in found if not word.startswith(("resume=", "logger.group="))]


def _merged_table(table: dict[str, Any], earlier: dict[str, Any] | None) -> dict[str, Any]:
    """A published table with the rows of ours that were measured before and are not measured anew."""
    measured = [row for row in (earlier["ours"] if earlier is not None else []) if "values" in row]
    new = {(row["name"], row["seed"], row["command"]) for row in table["ours"] if "values" in row}
    rows: list[Entry] = []
    for row in table["ours"]:
        if row["name"] not in {each["name"] for each in rows}:
            kept = [each for each in measured if each["name"] == row["name"]]
            rows += [each for each in kept if (each["name"], each["seed"], each["command"]) not in new]
        if "values" in row or not any(each["name"] == row["name"] for each in rows):
            rows.append(row)
    return {**table, "ours": rows}
