"""Filters find what a plain look at every line finds, and no word of a search is an operator."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.view.test_rollout_index import append, item, rollout
from vime.files.jsonl import write_lines
from vime.view.index_entry import IndexEntry, entry_of
from vime.view.query import SORTS, Filters, facets, find
from vime.view.rollout_index import RolloutIndex

LINES = [rollout(1 + n % 3, n, stop_reason=("answered", "time_limit")[n % 2], dataset=f"set_{n % 2}") for n in range(30)]
ITEMS = [item(n, strict=float(n % 2), evaluation="step2" if n > 5 else "") for n in range(10)]
ENTRIES = [entry_of(line) for line in [*LINES, *ITEMS]]
CHECKS: dict[str, Callable[[IndexEntry, Any], bool]] = {
    "min_step": lambda entry, value: entry.step >= value,
    "max_step": lambda entry, value: entry.step <= value,
    "min_reward": lambda entry, value: entry.reward >= value,
    "max_reward": lambda entry, value: entry.reward <= value,
    "min_advantage": lambda entry, value: entry.advantage is not None and entry.advantage >= value,
    "max_advantage": lambda entry, value: entry.advantage is not None and entry.advantage <= value,
    "min_tokens": lambda entry, value: entry.num_tokens >= value,
    "max_tokens": lambda entry, value: entry.num_tokens <= value,
    "min_turns": lambda entry, value: entry.num_turns >= value,
    "tool": lambda entry, value: value in entry.tools,
    "text": lambda entry, value: value in entry.text.lower().split(),
}
VALUES: dict[str, Any] = {
    **{name: st.integers(0, 12) for name in ("min_step", "max_step", "item", "min_turns", "group_index")},
    **{name: st.sampled_from([0.0, 0.5, 1.0, 2.0]) for name in ("min_reward", "max_reward")},
    **{name: st.sampled_from([-0.5, 0.0, 0.5]) for name in ("min_advantage", "max_advantage")},
    **{name: st.integers(0, 40) for name in ("min_tokens", "max_tokens")},
    "kind": st.sampled_from(["training", "evaluation"]),
    "dataset": st.sampled_from(["set_0", "docs", "nowhere"]),
    "condition": st.sampled_from(["trained", "scaffold"]),
    "stop_reason": st.sampled_from(["answered", "time_limit"]),
    "label": st.sampled_from(["step2", "step3"]),
    "tool": st.sampled_from(["search", "shell", "no_tool"]),
    "text": st.sampled_from(["word7", "früh", "question", "ärger", "hidden"]),
}


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    run: Path = tmp_path_factory.mktemp("run")
    for name in ("rollouts", "evaluation"):
        (run / name).mkdir()
    write_lines(run / "rollouts" / "step_000001.jsonl", LINES)
    append(run / "evaluation" / "docs-0.jsonl", ITEMS)
    index = RolloutIndex(run, run / "cache")
    index.update()
    with closing(index.connection()) as connection:
        yield connection


def passes(entry: IndexEntry, given: dict[str, Any]) -> bool:
    """True if an entry passes filters, seen without an index."""
    return all(CHECKS[name](entry, value) if name in CHECKS else getattr(entry, name) == value for name, value in given.items())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.fixed_dictionaries({}, optional=VALUES), st.sampled_from(["", *SORTS]), st.booleans())
def test_filters_find_what_a_look_at_every_line_finds(
    database: sqlite3.Connection, chosen: dict[str, Any], sort: str, descending: bool
):
    page = find(database, Filters(**chosen), sort=sort, descending=descending, limit=100)
    wanted = [entry for entry in ENTRIES if passes(entry, chosen)]
    key = [(row["kind"], row["item"], row["rollout_id"]) for row in page.rows]
    assert sorted(map(str, key)) == sorted(str((entry.kind, entry.item, entry.rollout_id)) for entry in wanted)
    assert page.total == len(wanted)
    values = [row[sort or "id"] for row in page.rows]
    present = [value for value in values if value is not None]
    assert present == sorted(present, reverse=descending) and values[: len(present)] == present  # what has no value stands last


@pytest.mark.parametrize("name", [name for name in CHECKS if name.startswith(("min_", "max_"))])
def test_a_bound_includes_its_own_value(database: sqlite3.Connection, name: str):
    field = name[4:] if name[4:] in ("step", "reward", "advantage") else f"num_{name[4:]}"
    values = {getattr(entry, field) for entry in ENTRIES} - {None}
    assert values
    for value in values:
        wanted = [entry for entry in ENTRIES if passes(entry, {name: value})]
        assert find(database, Filters(**{name: value}), limit=100).total == len(wanted)


def test_pages_follow_each_other_without_gaps(database: sqlite3.Connection):
    pages = [find(database, Filters(), sort="reward", limit=7, offset=start) for start in range(0, 42, 7)]
    ids = [row["id"] for page in pages for row in page.rows]
    assert len(ids) == len(set(ids)) == 40 and {page.total for page in pages} == {40}


@given(st.text(alphabet='ab"*()^:-+NEARORNOT{} ', max_size=12))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_no_search_is_an_error(database: sqlite3.Connection, text: str):
    assert find(database, Filters(text=text)).total >= 0


@pytest.mark.parametrize(
    ("text", "number"),
    [("word1", 1), ("word1*", 11), ('"found früh"', 30), ('"früh found"', 0), ("FRUH", 30), ("question word1", 1)],
)
def test_searches_are_for_words_beginnings_and_phrases(database: sqlite3.Connection, text: str, number: int):
    assert find(database, Filters(text=text)).total == number


def test_what_there_is_to_filter_by_is_what_the_lines_have(database: sqlite3.Connection):
    found = facets(database)
    assert found["dataset"] == ["docs", "set_0", "set_1"] and found["tool"] == ["search", "shell"]
    assert found["condition"] == ["trained"] and found["label"] == ["step2"] and found["step"] == [1, 9]


def test_what_is_no_number_or_no_order_is_refused_by_name(database: sqlite3.Connection):
    assert Filters.read({"min_reward": "0.5", "step": "7", "text": "", "kind": "training"}) == Filters(
        min_reward=0.5, kind="training"
    )
    with pytest.raises(ValueError, match="min_step"):
        Filters.read({"min_step": "many"})
    with pytest.raises(ValueError, match="text"):
        find(database, Filters(), sort="text")
