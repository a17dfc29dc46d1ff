"""The index equals the files: while they grow, after they are replaced, and after they are gone."""

import json
import os
import random
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from vime.files.jsonl import write_lines
from vime.view import rollout_index as index_module
from vime.view.index_entry import entry_of
from vime.view.query import Filters, find, place_of
from vime.view.rollout_index import COLUMNS, RolloutIndex


def rollout(step: int, number: int, **changed: Any) -> dict[str, Any]:
    """A line of `rollouts/`."""
    reply = f'word{number} <tool_call>{{"name": "search", "arguments": {{"name": "no_tool"}}}}</tool_call>'
    turns = [
        {"kind": "prompt", "num_tokens": 5, "text": "hidden document"},
        {"kind": "reply", "num_tokens": 3 + number, "text": reply},
        {"kind": "environment", "num_tokens": 2, "text": "found früh"},
    ]
    return {
        "step": step,
        "group_index": number // 4,
        "rollout_id": number,
        "dataset": "train",
        "row": number % 5,
        "messages": [{"role": "user", "content": "question"}],
        "reward": number / 7,
        "stop_reason": "answered",
        "status": "completed",
        "error": "",
        "generation_seconds": 0.5,
        "samples": [{"response": "", "metadata": {}, "advantage": 0.25, "turns": turns}],
        **changed,
    }


def item(index: int, **changed: Any) -> dict[str, Any]:
    """A line of `evaluation/`."""
    known = {"row": "trained", "run": 0, "evaluation": "", "label": ["a"], "version": 9, "failed": False, "strict": 1.0}
    known |= {"dataset": "docs", "index": index, "stop_reason": "answered", "error": "Ärger"}
    return known | {"samples": [{"response": "an answer", "metadata": {"tool_calls": {"shell": 2}}}]} | changed


def append(path: Path, lines: list[dict[str, Any]], *, torn: str = "") -> None:
    with path.open("a") as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines) + torn)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for name in ("rollouts", "evaluation"):
        (tmp_path / "run" / name).mkdir(parents=True)
    return tmp_path / "run"


def indexed(index: RolloutIndex) -> list[tuple[Any, ...]]:
    """All entries, each with the line at its place."""
    with closing(index.connection()) as database:
        found = []
        for row in find(database, Filters(), limit=1000).rows:
            path, start, size = place_of(database, row["id"]) or ("", 0, 0)
            line = json.loads((index.run / path).read_bytes()[start : start + size])
            found.append((path, json.dumps(line, sort_keys=True), *(row[column] for column in COLUMNS)))
    return sorted(found, key=str)


def in_files(run: Path) -> list[tuple[Any, ...]]:
    """The expected result of `indexed`, read from the files."""
    found = []
    for path in [*run.glob("rollouts/step_*.jsonl"), *run.glob("evaluation/*.jsonl")]:
        for text in path.read_text().split("\n")[:-1]:
            line = json.loads(text)
            values = [getattr(entry_of(line), column) for column in COLUMNS]
            values = [int(value) if isinstance(value, bool) else value for value in values]
            found.append((str(path.relative_to(run)), json.dumps(line, sort_keys=True), *values))
    return sorted(found, key=str)


def change(run: Path, dice: random.Random) -> None:
    """One thing that a run does to its files."""
    step, items = (
        run / "rollouts" / f"step_{dice.randrange(1, 5):06d}.jsonl",
        run / "evaluation" / f"docs-{dice.randrange(2)}.jsonl",
    )
    lines = [rollout(dice.randrange(9), dice.randrange(40)) for _ in range(dice.randrange(1, 6))]
    what = dice.randrange(5)
    if what == 0:
        write_lines(step, lines)
    elif what == 1:
        step.unlink(missing_ok=True)
    elif what == 2 and items.exists():
        kept = [line for line in items.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
        write_lines(items, [json.loads(line) for line in kept[: dice.randrange(len(kept) + 1)]])
    elif what == 3 and items.exists():
        data = items.read_bytes()
        os.truncate(items, data.rfind(b"\n") + 1)
    elif not items.exists() or items.read_bytes().endswith(b"\n"):
        append(items, [item(dice.randrange(40)) for _ in range(3)], torn=dice.choice(["", '{"index": 7, "to']))


@pytest.mark.parametrize("seed", range(8))
def test_the_index_equals_the_files_whatever_a_run_does_to_them(run: Path, seed: int, tmp_path: Path):
    dice, index = random.Random(seed), RolloutIndex(run, tmp_path / "cache")
    for _ in range(25):
        for _ in range(dice.randrange(1, 4)):
            change(run, dice)
        if dice.random() < 0.3:
            index = RolloutIndex(run, tmp_path / "cache")  # a viewer that was started again
        index.update()
        assert indexed(index) == in_files(run)
        assert index.update() == 0


def test_a_step_file_that_is_replaced_by_one_of_the_same_size_is_read_again(run: Path, tmp_path: Path):
    index, path = RolloutIndex(run, tmp_path / "cache"), run / "rollouts" / "step_000001.jsonl"
    for reward in (0.5, 0.7):
        write_lines(path, [rollout(1, 3, reward=reward)])
        index.update()
        assert indexed(index) == in_files(run)


def test_reading_in_small_parts_ends_with_the_same_index(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(index_module, "BATCH_BYTES", 1000)
    write_lines(run / "rollouts" / "step_000001.jsonl", [rollout(1, number) for number in range(50)])
    append(run / "evaluation" / "docs-0.jsonl", [item(number) for number in range(50)])
    index, parts = RolloutIndex(run, tmp_path / "cache"), 0
    while index.update(max_bytes=1):
        parts += 1
    assert parts > 10 and indexed(index) == in_files(run)


@pytest.mark.parametrize("wrong", ["no json\n", '{"samples": 3}\n', "[]\n"])
def test_a_line_that_cannot_be_read_is_reported_and_holds_up_no_other_file(run: Path, tmp_path: Path, wrong: str):
    path = run / "evaluation" / "docs-0.jsonl"
    append(path, [item(0)], torn=wrong)
    write_lines(run / "rollouts" / "step_000001.jsonl", [rollout(1, 3)])
    index = RolloutIndex(run, tmp_path / "cache")
    index.update()
    assert set(index.problems) == {"evaluation/docs-0.jsonl"}
    assert [entry[0] for entry in indexed(index)] == ["rollouts/step_000001.jsonl"]
    path.unlink()
    append(path, [item(1)])
    index.update()
    assert indexed(index) == in_files(run) and index.problems == {}


def test_links_that_lead_out_of_the_run_are_not_followed(run: Path, tmp_path: Path):
    append(tmp_path / "secret.jsonl", [item(0)])
    (run / "evaluation" / "docs-0.jsonl").symlink_to(tmp_path / "secret.jsonl")
    (tmp_path / "elsewhere").mkdir()
    write_lines(tmp_path / "elsewhere" / "step_000001.jsonl", [rollout(1, 3)])
    (run / "rollouts").rmdir()
    (run / "rollouts").symlink_to(tmp_path / "elsewhere")
    index = RolloutIndex(run, tmp_path / "cache")
    index.update()
    assert indexed(index) == []


def test_nothing_is_written_into_the_run_folder(run: Path, tmp_path: Path):
    write_lines(run / "rollouts" / "step_000001.jsonl", [rollout(1, 3)])
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    index = RolloutIndex(run, tmp_path / "cache")
    index.update()
    assert len(indexed(index)) == 1 and {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_an_index_of_another_format_is_made_anew(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_lines(run / "rollouts" / "step_000001.jsonl", [rollout(1, 3)])
    RolloutIndex(run, tmp_path / "cache").update()
    monkeypatch.setattr(index_module, "FORMAT", index_module.FORMAT + 1)
    index = RolloutIndex(run, tmp_path / "cache")
    assert indexed(index) == []
    index.update()
    assert indexed(index) == in_files(run)
