"""Prompts come once each and in the same order after a restart; the buffer hands out what can be trained in time."""

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vime.config import DataConfig, DatasetConfig, RunConfig, TeacherConfig
from vime.data.dataset import check_rows, load_rows, to_prompt
from vime.data.source import RowSource
from vime.errors import ConfigError, HookError
from vime.evaluation.protocol import load_prompts
from vime.files.serialization import from_json, to_json
from vime.orchestration.buffer import Buffer
from vime.types import Group, Prompt, Rollout, Sample, StopReason, Turn
from vime.workers.group_run import GroupProgress


@pytest.fixture
def config(tmp_path) -> RunConfig:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"question": f"q{i}", "answer": f"a{i}"}) + "\n" for i in range(5)))
    return RunConfig(data=DataConfig(train=DatasetConfig(path=str(path))))


def test_a_row_may_name_its_data_set_and_a_teacher_of_no_row_is_refused(config: RunConfig):
    rows = [{"question": "q", "dataset": name} for name in ("sums", "words", "no name / at all", 7)] + [{"question": "q"}]
    Path(str(config.data.train.path)).write_text("\n".join(map(json.dumps, rows)))
    names = ["sums", "words", "train", "train", "train"]
    config.algorithm.distillation.teachers = {"solver": TeacherConfig(datasets=["words", "train"]), "other": TeacherConfig()}
    source = RowSource(config)
    assert [prompt.dataset for prompt in source.prompts()] == names
    assert sorted(source.next().dataset for _ in rows) == sorted(names)
    config.algorithm.distillation.teachers["other"].datasets = ["sums", "wrods"]
    with pytest.raises(ConfigError, match=r"teachers\.other\.datasets=.* is of wrods: use sums, train, words"):
        RowSource(config)


def make_prompt(index: int) -> Prompt:
    return Prompt(index=index, row=index, messages=[{"role": "user", "content": "?"}], ground_truth=["a"])


def test_every_row_comes_once_an_epoch_in_another_order(config: RunConfig):
    source = RowSource(config)
    epochs = [[source.next().row for _ in range(5)] for _ in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(5))
    assert epochs[0] != epochs[1]


def test_a_restored_source_goes_on_where_it_was_across_epochs(config: RunConfig):
    whole, first = RowSource(config), RowSource(config)
    expected = [whole.next() for _ in range(13)]
    seen = [first.next() for _ in range(7)]
    second = RowSource(config)
    second.load(json.loads(json.dumps(first.state())))
    assert seen + [second.next() for _ in range(6)] == expected


def changed(config: RunConfig, change: str, tmp_path: Path) -> RunConfig:
    """The configuration of a run that is resumed after a change."""
    assert config.data.train.path
    rows, train = Path(config.data.train.path).read_text().splitlines(), config.data.train
    if change == "seed":
        return replace(config, seed=1)
    if change == "shuffle":
        return replace(config, data=replace(config.data, shuffle=False))
    if change == "num_items":
        return replace(config, data=replace(config.data, train=replace(train, num_items=4)))
    new = {"order": rows[::-1], "answer": [*rows[:4], rows[4].replace("a4", "b4")], "row more": [*rows, rows[0]], "copy": rows}
    path = tmp_path / "other.jsonl"
    path.write_text("\n".join(new[change]))
    return replace(config, data=replace(config.data, train=replace(train, path=str(path))))


@pytest.mark.parametrize("change", ["seed", "shuffle", "num_items", "order", "answer", "row more"])
def test_a_state_of_other_prompts_or_another_order_is_refused_with_the_setting(config: RunConfig, change: str, tmp_path: Path):
    first = RowSource(config)
    first.next()
    second = RowSource(changed(config, change, tmp_path))
    key = {"seed": "seed", "shuffle": "data.shuffle"}.get(change, "data.train.path")
    with pytest.raises(ConfigError, match=rf"^{key}=.*the checkpoint.*resume with what it has, or begin a new run"):
        second.load(json.loads(json.dumps(first.state())))
    assert second.next().index == 0


def test_the_same_rows_elsewhere_and_a_seed_that_orders_nothing_are_the_same_prompts(config: RunConfig, tmp_path: Path):
    first = RowSource(config)
    first.next()
    RowSource(changed(config, "copy", tmp_path)).load(first.state())
    in_order = replace(config, data=replace(config.data, shuffle=False))
    RowSource(replace(in_order, seed=1)).load(RowSource(in_order).state())
    RowSource(config).load({"position": 3})


def test_rows_of_the_public_sets_become_prompts():
    hotpot = {"prompt": [{"role": "user", "content": "Q"}], "context": "C", "reward_model": {"ground_truth": ["x", "y"]}}
    prompt = to_prompt(hotpot, index=3, row_number=1, dataset="train")
    assert (prompt.messages[-1]["content"], prompt.ground_truth) == ("Q", ["x", "y"])
    assert prompt.fields == {**hotpot, "question": "Q"}, "all of a row reaches hooks and environments"
    ruler = {"input": "Q", "answers": ["x"], "context": "C", "index": 0, "num_docs": 50}
    assert to_prompt(ruler, index=0, row_number=0, dataset="d").ground_truth == ["x"]


def test_a_row_without_a_question_is_named(config: RunConfig):
    with pytest.raises(ConfigError, match="row 4 has none of the fields"):
        to_prompt({"text": "?"}, index=0, row_number=4, dataset="train")


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"text": "?"}, "none of the fields"),
        ({"question": []}, "none of the fields"),
        ({"question": 7}, "a int for its question"),
        ({"question": {"role": "user", "content": "?"}}, "a dict for its question"),
        ({"prompt": ["?"]}, "without role or content"),
        ({"prompt": [{"content": "?"}]}, "without role or content"),
        ({"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": None}]}, "without role or content"),
    ],
)
def test_a_row_that_cannot_be_asked_is_refused_before_anything_starts(config: RunConfig, row: dict[str, Any], problem: str):
    path = Path(str(config.data.train.path))
    path.write_text(path.read_text() + json.dumps(row) + "\n")
    config.data.evaluation = [DatasetConfig(name="dev", path=str(path))]
    with pytest.raises(ConfigError, match=rf"data\.train\.path=.*1 of 6 rows.*: row 5 has .*{problem}"):
        RowSource(config)
    with pytest.raises(ConfigError, match=rf"data\.evaluation\.0\.path=.*1 of 6 rows.*: row 5 has .*{problem}"):
        load_prompts(config)


def test_a_row_may_say_that_it_has_no_question():
    prompt = to_prompt({"prompt": [], "key": "game 7"}, index=0, row_number=0, dataset="train")
    assert prompt.messages == [] and prompt.question == ""
    assert prompt.fields == {"key": "game 7"}
    assert RunConfig().method.identities(prompt) == ["game 7"]


def failing_rows(num_items: int, seed: int) -> Iterator[dict[str, Any]]:
    yield {"question": "?"}
    raise KeyError("no such word")


def test_a_generator_that_raises_is_named_with_its_line():
    dataset = DatasetConfig(generator=f"{__file__}:failing_rows", num_items=4)
    with pytest.raises(HookError, match=r"data\.train\.generator=.*failing_rows raised KeyError: 'no such word'\n.*line \d+"):
        load_rows(dataset)


def test_of_many_rows_that_cannot_be_asked_three_are_named_and_all_counted_quickly():
    rows = [{"question": [{"role": "user", "content": "?"}], "answer": "a"}, {"text": "?"}] * 50_000
    started = time.monotonic()
    with pytest.raises(ConfigError, match="50000 of 100000 rows") as raised:
        check_rows(rows, DatasetConfig(generator="module.rows"))
    assert time.monotonic() - started < 5
    assert [f"row {number} has" in str(raised.value) for number in (1, 3, 5, 7)] == [True, True, True, False]


SEPARATORS = "one\u2028two\u2029three\u0085four"
"""Line ends to str.splitlines; to JSON, characters of a text."""


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_line_of_json_ends_at_the_end_of_a_line_only(config: RunConfig, end: str):
    rows = [{"question": SEPARATORS}, {"question": "next"}]
    text = end.join(["", *(json.dumps(row, ensure_ascii=False) for row in rows)])
    Path(str(config.data.train.path)).write_bytes(text.encode())
    assert load_rows(config.data.train) == rows


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("rows.jsonl", b'{"question": "q"}\n\n{"question": \n', "line 3 of rows.jsonl is no JSON: Expecting value at column 14"),
        ("rows.jsonl", b'{"question": "q"}\n["q"]\n', "line 2 of rows.jsonl is no object but a list"),
        ("rows.jsonl", b'{"question": "q"}\n{"question": "\xff"}\n', "line 2 of rows.jsonl is no UTF-8"),
        ("rows.json", b'[{"question": "q"},\n{"question" "q"}]', "line 2 of rows.json is no JSON"),
        ("rows.json", b'[\n{"question": "\xff"}]', "line 2 of rows.json is no UTF-8"),
        ("rows.json", b'"q"', "line 1 of rows.json is no object but a str"),
        ("rows.json", b'[{"question": "q"}, "q"]', "entry 2 of rows.json is no object but a str"),
    ],
)
def test_a_file_that_is_not_rows_is_refused_by_its_line(tmp_path: Path, name: str, content: bytes, problem: str):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ConfigError) as raised:
        load_rows(DatasetConfig(name="dev", path=str(path)))
    (found,) = raised.value.problems
    assert (found.key, found.value) == ("data.train.path", str(path)) and found.remedy.startswith(problem)


def test_num_items_limits_the_rows(config: RunConfig):
    config.data.train.num_items = 2
    assert len(load_rows(config.data.train)) == 2


def make_buffer(versions: list[int]) -> Buffer:
    """Slots whose generation began at these versions."""
    buffer = Buffer()
    for index, version in enumerate(versions):
        buffer.admit(make_prompt(index))
        buffer.start(version, max_staleness=9)
    return buffer


def finish(buffer: Buffer, *slots: int) -> None:
    for slot in slots:
        buffer.finish(slot, Group(prompt=buffer[slot].prompt, weight_version=buffer[slot].version or 0))


def taken(buffer: Buffer, **arguments: int) -> list[int] | None:
    groups = buffer.take(2, **{"version": 1, "max_staleness": 0, **arguments})
    return None if groups is None else [group.prompt.index for group in groups]


def test_on_policy_the_buffer_waits_for_all():
    buffer = make_buffer([1, 1])
    finish(buffer, 1)
    assert taken(buffer) is None
    finish(buffer, 0)
    assert taken(buffer) == [0, 1] and len(buffer) == 0


def test_what_finished_first_is_taken_first_among_equally_old():
    buffer = make_buffer([1, 1, 1, 1])
    finish(buffer, 3, 1, 2)
    assert taken(buffer, max_staleness=1) == [1, 3]
    assert taken(buffer, max_staleness=1, version=2) is None
    finish(buffer, 0)
    assert taken(buffer, max_staleness=1, version=2) == [0, 2]


def test_groups_that_are_given_back_are_the_next_to_be_taken_and_are_in_the_state():
    buffer = make_buffer([0, 0, 0, 0])
    finish(buffer, 2, 0, 3, 1)
    groups = buffer.take(2, version=0, max_staleness=1)
    assert groups is not None
    for group in reversed(groups):
        group.index = group.prompt.index
        buffer.give_back(group)
    resumed = Buffer()
    resumed.load(from_json(to_json(buffer.state())))
    assert taken(buffer, version=0, max_staleness=1) == [0, 2] and taken(buffer, max_staleness=1) == [1, 3]
    assert taken(resumed, version=0, max_staleness=1) == [0, 1] and taken(resumed, max_staleness=1) == [2, 3]


def test_nobody_is_left_behind_who_could_not_be_trained_in_time():
    buffer = make_buffer([1, 1, 2, 2])
    finish(buffer, 1, 2, 3)
    assert taken(buffer, version=2, max_staleness=1) is None
    assert taken(buffer, version=2, max_staleness=1, num_spare=1) == [1, 2]
    assert buffer.expire(oldest=2) == {0: None}
    assert buffer.start(3, max_staleness=1) == [0] and buffer[0].version == 3


def test_a_smaller_bound_after_a_resume_is_not_waited_for():
    buffer = make_buffer([1, 1, 1, 1, 1])
    finish(buffer, 0, 1, 2, 3)
    assert taken(buffer, max_staleness=1) is None, "the last may still finish"
    finish(buffer, 4)
    assert taken(buffer, max_staleness=1) == [0, 1]
    assert sorted(buffer.expire(oldest=2)) == [2, 3, 4]


@pytest.mark.parametrize("field", ["context_file", "archive"])
@pytest.mark.parametrize("name", ["/etc/hostname", "../secret.txt", "documents/../../secret.txt", "absent.txt", 7])
def test_a_rows_document_or_repository_is_a_file_below_the_folder_of_its_rows(tmp_path: Path, name: Any, field: str):
    folder = tmp_path / "data"
    (folder / "documents").mkdir(parents=True)
    (folder / "documents" / "0.txt").write_text("long")
    (tmp_path / "secret.txt").write_text("secret")
    rows = [{"question": "?", field: "documents/0.txt"}, {"question": "?", field: name}, {"question": "?"}]
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in (rows[0], rows[2])))
    assert load_rows(DatasetConfig(path=str(path)))[0][field] == str(folder / "documents" / "0.txt")
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ConfigError, match=r"1 of 3 rows.*row 1"):
        load_rows(DatasetConfig(name="long", path=str(path)))


def test_a_restored_buffer_has_the_same_groups_unfinished_prompts_and_progress():
    buffer = make_buffer([3, 3, 4, 4])
    finish(buffer, 1)
    turn = Turn(key="k", output_ids=[1], logprobs=[-0.5], weight_versions=[3], finish_reason="stop")
    rollout = Rollout(rollout_id=5, group_index=0, stop_reason=StopReason.ANSWERED, samples=[Sample(tokens=[1])])
    mine = GroupProgress(prompt_index=0, version=3, finished={5: rollout}, turns={6: [turn]})
    other = GroupProgress(prompt_index=77, version=4, turns={0: [turn]})
    before = GroupProgress(prompt_index=3, version=2, turns={0: [turn]})
    state = buffer.state({0: mine, 2: other, 3: before})
    restored = Buffer()
    restored.load(from_json(to_json(state, compact=True)))
    assert restored.state() == state
    as_lists = Buffer()
    as_lists.load(from_json(to_json(state)))
    assert as_lists.state() == state
    assert restored.start(5, max_staleness=2) == [0, 2, 3]
    assert (restored[0].version, restored[0].progress) == (3, mine)
    assert [(restored[slot].version, restored[slot].progress) for slot in (2, 3)] == [(5, None), (5, None)]
    assert restored.admit(make_prompt(9)) == 4


def test_progress_that_would_be_too_old_is_sampled_again():
    buffer = make_buffer([3])
    turn = Turn(key="k", output_ids=[1], logprobs=[-0.5], weight_versions=[3], finish_reason="stop")
    restored = Buffer()
    restored.load(buffer.state({0: GroupProgress(prompt_index=0, version=3, turns={0: [turn]})}))
    restored.start(5, max_staleness=1)
    assert (restored[0].version, restored[0].progress) == (5, None)
