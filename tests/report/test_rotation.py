"""Rollouts and timelines keep their size however long a run lasts, and what is left can be read."""

from pathlib import Path

import pytest

from vime.report.rotation import keep_newest
from vime.report.run_directory import RunDirectory
from vime.report.trace_file import NUM_PARTS, TraceWriter, read_trace
from vime.types import Group, Prompt, Rollout, Sample


def test_the_rollouts_of_first_steps_make_room_for_later_ones(tmp_path: Path):
    directory = RunDirectory(tmp_path)
    directory.rollouts.mkdir()
    prompt = Prompt(index=0, row=0, messages=[], ground_truth=[])
    group = Group(prompt=prompt, rollouts=[Rollout(rollout_id=0, group_index=0, samples=[Sample(response="x" * 1000)])])
    for step in range(1, 31):
        path = directory.write_rollouts(step, [group], max_bytes=10_000)
        assert path.exists() and sum(file.stat().st_size for file in directory.rollouts.iterdir()) <= 10_000
    left = [step for step in range(1, 31) if directory.read_rollouts(step)]
    assert left == list(range(left[0], 31)) and len(left) > 3


@pytest.mark.parametrize(("sizes", "num_left"), [([], 0), ([50], 1), ([5, 5, 50], 1), ([5, 5, 5], 2), ([5, 5], 2)])
def test_the_newest_file_stays_whatever_its_size(tmp_path: Path, sizes: list[int], num_left: int):
    files = [tmp_path / str(number) for number in range(len(sizes))]
    for file, size in zip(files, sizes):
        file.write_bytes(b"x" * size)
    keep_newest(files, max_bytes=10)
    assert sorted(tmp_path.iterdir()) == files[len(files) - num_left :]


def test_a_trace_keeps_its_size_its_newest_events_and_its_form_also_when_a_run_goes_on(tmp_path: Path):
    path, max_bytes, num_steps = tmp_path / "trace.json", 20_000, 1000
    for first in (0, 400, 800):
        writer = TraceWriter(path, max_bytes=max_bytes)
        for step in range(first, min(first + 400, num_steps)):
            writer.phases([("training", float(step), 0.5)], step=step)
    parts = sorted(tmp_path.iterdir())
    assert sum(part.stat().st_size for part in parts) <= 1.1 * max_bytes
    events = read_trace(path)
    steps = [event["args"]["step"] for event in events if event["ph"] == "X"]
    assert steps == list(range(steps[0], num_steps)) and 0 < steps[0] < num_steps - 10
    assert 1 < sum(event["ph"] == "M" for event in events) == len(parts) <= NUM_PARTS  # each part names its process
