"""A rollout as a page reads it: branches by what sequences share, tokens with the numbers of the file, its timeline."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.report.test_html import make_run
from tests.view.test_rollout_index import rollout
from vime.files.jsonl import write_lines
from vime.report.run_directory import RunDirectory
from vime.types import Column
from vime.view.query import Filters
from vime.view.rollout_page import branches, read_rollout, read_tokens, side_by_side
from vime.view.runs import Run, Runs

NUMBERS = st.floats(-20, 0, width=32)


def sequence(*tokens: int, num_prompt: int = 2) -> dict[str, Any]:
    return {"tokens": list(tokens), "num_prompt_tokens": num_prompt}


def test_a_branch_leaves_the_sequence_that_it_shares_most_with():
    main, summary, other = sequence(1, 2, 3, 4, 5), sequence(1, 2, 3, 9), sequence(7, 8, 9)
    deep = sequence(1, 2, 3, 9, 9, 9)
    found = branches([main, summary, other, deep])
    assert [branch["parent"] for branch in found] == [None, 0, None, 1]
    assert [branch["shared"] for branch in found] == [0, 3, 0, 4]


def test_sequences_that_share_only_the_beginning_of_a_prompt_are_no_branches():
    assert [b["parent"] for b in branches([sequence(1, 2, 3, num_prompt=2), sequence(1, 9, 9, num_prompt=2)])] == [None, None]


def test_without_tokens_the_texts_of_the_turns_are_compared():
    turns = [[{"kind": "prompt", "text": "ab"}, {"kind": "reply", "text": text}] for text in ("cd", "ce")]
    found = branches([{"turns": turn} for turn in turns] + [{"response": "x"}])
    assert [(b["parent"], b["shared"], b["unit"]) for b in found] == [
        (None, 0, "characters"),
        (0, 3, "characters"),
        (None, 0, "characters"),
    ]


def run_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[dict[str, Any]]) -> Run:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    directory = make_run(tmp_path / "outputs" / "run")
    directory.rollouts.mkdir()
    write_lines(directory.rollouts / "step_000001.jsonl", lines, compact=True)
    run = Runs([directory.path]).all()[0]
    run.indexed()
    return run


def test_the_numbers_of_tokens_are_those_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    logprobs, trainer = np.array([-0.1, -2.3e-7, 0.0], np.float32), np.array([-0.1000001, -3.5, 0.0], np.float32)
    sample = {"tokens": Column([0, 1, 2, 3, 4], np.int32), "loss_mask": Column([1, 1, 0], np.uint8), "num_prompt_tokens": 2}
    sample |= {
        "rollout_log_probs": Column(logprobs, np.float32),
        "trainer_log_probs": Column(trainer, np.float32),
        "weight_versions": 7,
    }
    sample |= {"response": "", "response_length": 3, "metadata": {}, "advantage": 0.25}
    run = run_with(tmp_path, monkeypatch, [rollout(1, 0, samples=[sample])])
    pieces = [b"<|im_start|>", b"Q", "ä".encode()[:1], "ä".encode()[1:], b"<b>"]
    (run.path / "vocabulary.json").write_text(json.dumps([piece.decode("latin-1") for piece in pieces]))
    found = read_tokens(run, 1, 0)
    assert found["texts"] == ["<|im_start|>", "Q", "", "ä", "<b>"] and found["tokens"] == [0, 1, 2, 3, 4]
    assert np.array_equal(np.array(found["rollout_log_probs"], np.float32), logprobs) and found["rollout_log_probs"][0] == -0.1
    assert np.array_equal(np.array(found["trainer_log_probs"], np.float32), trainer)
    assert (found["loss_mask"], found["weight_versions"], found["advantage"]) == ([1, 1, 0], [7, 7, 7], 0.25)
    assert not {"tokens", "loss_mask"} & set(read_rollout(run, 1)["line"]["samples"][0])
    for wrong in ((1, 1), (1, -1), (2, 0)):
        with pytest.raises(FileNotFoundError):
            read_tokens(run, *wrong)


@given(st.lists(NUMBERS, min_size=1, max_size=20))
def test_float32_numbers_are_sent_without_loss(values: list[float]):
    from vime.view.rollout_page import _exact

    array = np.array(values, np.float32)
    assert np.array_equal(np.array(_exact(Column(array, np.float32).to_text()), np.float32), array)


def test_a_rollout_without_recorded_tokens_opens_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    old = {"response": "a reply", "metadata": {}}
    run = run_with(tmp_path, monkeypatch, [rollout(1, 0, samples=[old])])
    assert read_rollout(run, 1)["recorded"] == [[]] and read_tokens(run, 1, 0)["texts"] is None


def test_what_the_model_had_said_before_the_agent_failed_stands_for_its_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    said = {"response": "half a reply", "metadata": {}}
    lines = [rollout(1, 0, samples=[], unfinished=[said]), rollout(1, 1)]
    run = run_with(tmp_path, monkeypatch, lines)
    found = read_rollout(run, 1)["line"]
    assert found["samples"] == [said] and found["unfinished"] is True and "unfinished" not in read_rollout(run, 2)["line"]
    assert [row["response"] for row in side_by_side(run, Filters(text="half"))] == ["half a reply"]


def test_the_timeline_is_that_of_this_rollout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = run_with(tmp_path, monkeypatch, [rollout(1, number, group_index=4) for number in range(3)])
    events: list[dict[str, Any]] = [
        {"name": "generation", "cat": "step", "ph": "X", "ts": 0, "dur": 9, "pid": 0, "tid": 0, "args": {}}
    ]
    for number in range(2):
        events.append(
            {"name": "thread_name", "ph": "M", "pid": 5, "tid": number, "args": {"name": f"rollout {number}: answered"}}
        )
        span = {
            "name": "actor",
            "cat": "generation",
            "ph": "X",
            "ts": 2e6 + number,
            "dur": 5e5,
            "pid": 5,
            "tid": number,
            "args": {},
        }
        events += [{**span, "ts": 3e6, "name": "tool", "cat": "tool"}, span]
    (run.path / "trace.json").write_text("[\n" + "".join(json.dumps(event) + ",\n" for event in events) + '{"name": "torn')
    spans = read_rollout(run, 1)["timeline"]
    assert [(s["name"], s["start"], s["seconds"]) for s in spans] == [("actor", 0.0, 0.5), ("tool", 1.0, 0.5)]
    assert read_rollout(run, 3)["timeline"] == []


def test_a_group_stands_side_by_side_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = run_with(tmp_path, monkeypatch, [rollout(1, number) for number in range(8)])
    found = side_by_side(run, Filters(group_index=1))
    assert [row["rollout_id"] for row in found] == [4, 5, 6, 7]
    assert all(row["response"].startswith(f"word{row['rollout_id']} ") for row in found)


def test_evaluations_of_an_item_say_their_temperature(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = run_with(tmp_path, monkeypatch, [rollout(1, 0) | {"temperature": 0.5}, rollout(1, 1)])
    assert [row["temperature"] for row in side_by_side(run, Filters())] == [0.5, None]


def test_filters_say_whether_files_are_still_being_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = run_with(tmp_path, monkeypatch, [rollout(1, 0)])
    write_lines(RunDirectory(run.path).rollouts / "step_000002.jsonl", [rollout(2, 1)], compact=True)
    monkeypatch.setattr("vime.view.runs.UPDATE_BYTES", 1)
    assert [run.facets()["more"] for _ in range(2)] == [True, False]


def test_a_line_of_a_file_that_is_gone_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = run_with(tmp_path, monkeypatch, [rollout(1, 0)])
    RunDirectory(run.path).rollouts.joinpath("step_000001.jsonl").unlink()
    with pytest.raises(FileNotFoundError):
        read_rollout(run, 1)
