"""The journal gives back what finished after a checkpoint, and nothing from weights that were lost."""

from pathlib import Path

import pytest

from vime.orchestration.journal import Journal
from vime.types import Group, Prompt, Rollout, Sample, StopReason


def group(slot: int, *versions: int) -> Group:
    sample = Sample(tokens=[1, *range(len(versions))], loss_mask=[1] * len(versions), weight_versions=list(versions))
    rollout = Rollout(rollout_id=slot, group_index=slot, samples=[sample], stop_reason=StopReason.ANSWERED)
    prompt = Prompt(index=10 + slot, row=slot, messages=[{"role": "user", "content": "ä?"}], ground_truth=["b"])
    return Group(index=slot, prompt=prompt, rollouts=[rollout], weight_version=min(versions))


async def test_what_finished_after_the_checkpoint_is_recalled_once_and_equal(tmp_path: Path):
    journal = Journal(tmp_path)
    journal.begin(5)
    await journal.add(group(3, 5, 5))
    again = Journal(tmp_path)
    assert again.recall(5) == 1
    assert again.take(3, 12) is None and again.take(2, 13) is None
    found = again.take(3, 13)
    assert found is not None and found.to_dict() == group(3, 5, 5).to_dict()
    assert again.take(3, 13) is None


async def test_tokens_of_weights_that_are_lost_are_not_recalled(tmp_path: Path):
    journal = Journal(tmp_path)
    journal.begin(5)
    await journal.add(group(0, 5, 6))  # no run that resumes from step 5 has version 6
    journal.begin(6)
    await journal.add(group(1, 5, 5))
    await journal.add(group(2, 5, 6))
    again = Journal(tmp_path)
    assert again.recall(6) == 2
    again = Journal(tmp_path)
    assert again.recall(5) == 1 and again.take(1, 11) is not None


async def test_a_part_of_steps_that_are_repeated_is_gone_before_they_are(tmp_path: Path):
    journal = Journal(tmp_path)
    journal.begin(6)
    await journal.add(group(1, 6))
    second = Journal(tmp_path)
    assert second.recall(5) == 0  # the checkpoint of step 6 was damaged
    second.begin(6)
    await second.add(group(2, 6))
    third = Journal(tmp_path)
    assert third.recall(6) == 1 and third.take(2, 12) is not None


async def test_parts_that_no_checkpoint_needs_are_removed(tmp_path: Path):
    journal = Journal(tmp_path)
    for step in (1, 2, 3):
        journal.begin(step, oldest_step=step - 1)
        await journal.add(group(step, step))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000002.jsonl", "step_000003.jsonl"]


@pytest.mark.parametrize("torn", ['{"prompt": {"ind', "\n", '{"prompt"\n'])
async def test_a_torn_line_costs_that_group_alone(tmp_path: Path, torn: str):
    journal = Journal(tmp_path)
    journal.begin(1)
    await journal.add(group(1, 1))
    with (tmp_path / "step_000001.jsonl").open("a") as file:
        file.write(torn)
    assert Journal(tmp_path).recall(1) == 1


async def test_a_folder_that_cannot_be_written_costs_nothing_but_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    (tmp_path / "file").write_text("")
    journal = Journal(tmp_path / "file" / "journal")
    journal.begin(1)
    await journal.add(group(1, 1))
    assert "cannot be written" in caplog.text
