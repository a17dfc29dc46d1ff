"""Checkpoints of a run: what is kept, what a failure costs, and what is left of a crash."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from vime import run_checkpoints
from vime.config import TrainerConfig
from vime.errors import CheckpointError, TrainingError
from vime.run_checkpoints import Checkpoints


class Trainer:
    """A trainer whose state is a word in a file, and whose writing takes until `release` is called, or fails."""

    def __init__(self) -> None:
        self.word = ""
        self.failure: Exception | None = None
        self._released = asyncio.Event()
        self._released.set()
        self._folder = Path()

    def hold(self) -> None:
        self._released.clear()

    def release(self) -> None:
        self._released.set()

    async def begin_save(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        (folder / "word").write_text(self.word)

    async def is_saved(self) -> bool:
        return self._released.is_set()

    async def finish_save(self) -> None:
        if self.failure is not None:
            raise self.failure

    async def load(self, folder: Path) -> None:
        self.word = (folder / "word").read_text()


@pytest.fixture(autouse=True)
def without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vime.run_checkpoints.POLL_SECONDS", 0.001)


def open_checkpoints(folder: Path, trainer: Trainer, said: list[str] | None = None, **settings) -> Checkpoints:
    warn = (said if said is not None else []).append
    return Checkpoints(folder, TrainerConfig(**settings), trainer, warn=warn)


async def save_all(checkpoints: Checkpoints, *steps: int, scores: dict[int, float] | None = None) -> None:
    for step in steps:
        await checkpoints.save(step=step, driver={"state": step * 10})
        if scores and step in scores:
            await checkpoints.note_scores(step=step, scores={"evaluation/a": scores[step], "evaluation/b": 0.0})
    await checkpoints.settle()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


async def test_the_newest_are_kept_and_load_what_was_saved(tmp_path: Path):
    trainer = Trainer()
    checkpoints = open_checkpoints(tmp_path, trainer, keep_checkpoints=2)
    assert checkpoints.newest() is None
    for step, word in ((5, "five"), (10, "ten"), (999_999, "almost"), (1_000_000, "million")):
        trainer.word = word
        await save_all(checkpoints, step)
    assert names(tmp_path) == ["step_1000000", "step_999999"]
    newest = checkpoints.newest()
    assert newest is not None
    trainer.word = "other"
    assert await checkpoints.load(newest) == {"step": 1_000_000, "state": 10_000_000} and trainer.word == "million"


@pytest.mark.parametrize("metric", ["evaluation/a", "evaluation"])
async def test_the_best_is_kept_besides_the_newest_also_over_a_restart(tmp_path: Path, metric: str):
    def again() -> Checkpoints:
        return open_checkpoints(tmp_path, Trainer(), keep_checkpoints=1, keep_best=metric)

    await save_all(again(), 1, 2, 3, scores={1: 10.0, 2: 30.0, 3: 20.0})
    assert names(tmp_path) == ["step_000002", "step_000003"]
    await save_all(again(), 4, 5, 6, scores={4: 30.0, 5: 31.0})
    assert names(tmp_path) == ["step_000005", "step_000006"]
    await save_all(open_checkpoints(tmp_path, Trainer(), keep_checkpoints=1), 7)
    assert names(tmp_path) == ["step_000007"], "without keep_best the best is like any other"


async def test_a_save_is_of_the_moment_and_the_next_one_waits_for_it(tmp_path: Path):
    trainer = Trainer()
    checkpoints = open_checkpoints(tmp_path, trainer)
    trainer.word = "then"
    trainer.hold()
    await checkpoints.save(step=1, driver={})
    await checkpoints.check()
    assert names(tmp_path) == [".writing_step_000001"]
    trainer.word = "now"
    second = asyncio.create_task(checkpoints.save(step=2, driver={}))
    await asyncio.sleep(0.02)
    assert not second.done() and names(tmp_path) == [".writing_step_000001"]
    trainer.release()
    await second
    await checkpoints.close(failed=False)
    assert [(tmp_path / f"step_00000{step}" / "trainer" / "word").read_text() for step in (1, 2)] == ["then", "now"]


async def test_ctrl_c_while_waiting_does_not_lose_the_checkpoint(tmp_path: Path):
    trainer = Trainer()
    checkpoints = open_checkpoints(tmp_path, trainer)
    trainer.hold()
    await checkpoints.save(step=1, driver={})
    waiting = asyncio.create_task(checkpoints.settle())
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    trainer.release()
    await checkpoints.close(failed=True)
    assert names(tmp_path) == ["step_000001"]


async def test_without_async_save_it_is_complete_on_return(tmp_path: Path):
    await open_checkpoints(tmp_path, Trainer(), async_save=False).save(step=1, driver={})
    assert names(tmp_path) == ["step_000001"]


async def test_a_failed_save_ends_the_run_by_default_and_the_one_before_is_whole(tmp_path: Path):
    trainer = Trainer()
    checkpoints = open_checkpoints(tmp_path, trainer)
    await save_all(checkpoints, 1)
    trainer.failure = CheckpointError("no space left")
    await checkpoints.save(step=2, driver={})
    await asyncio.sleep(0.02)
    with pytest.raises(CheckpointError, match=r"was not saved, .*step_000001 is whole: no space left"):
        await checkpoints.check()
    assert names(tmp_path) == ["step_000001"]


async def test_by_configuration_a_failed_save_is_a_warning_and_makes_room(tmp_path: Path):
    trainer, said = Trainer(), []
    checkpoints = open_checkpoints(tmp_path, trainer, said, stop_on_failed_save=False)
    trainer.failure = CheckpointError("no space left")
    await save_all(checkpoints, 1)
    assert names(tmp_path) == [] and said == ["the checkpoint was not saved, there is none before it: no space left"]
    trainer.failure = None
    await save_all(checkpoints, 2)
    assert names(tmp_path) == ["step_000002"] and len(said) == 1


async def test_a_dead_rank_is_no_failed_save(tmp_path: Path):
    trainer = Trainer()
    checkpoints = open_checkpoints(tmp_path, trainer, stop_on_failed_save=False)
    trainer.failure = TrainingError("trainer rank 0 died during is_saved")
    await checkpoints.save(step=1, driver={})
    with pytest.raises(TrainingError, match="died"):
        await checkpoints.settle()
    await checkpoints.save(step=2, driver={})
    await checkpoints.close(failed=True)


async def test_the_next_start_clears_away_what_a_crash_left(tmp_path: Path):
    await save_all(open_checkpoints(tmp_path, Trainer()), 1, 2)
    (tmp_path / ".writing_step_000003" / "trainer").mkdir(parents=True)
    (tmp_path / ".removed_step_000000").mkdir()
    (tmp_path / "step_000002").rename(tmp_path / ".replaced_step_000002")  # killed between two renames
    checkpoints = open_checkpoints(tmp_path, Trainer())
    assert names(tmp_path) == ["step_000001", "step_000002"]
    (tmp_path / ".replaced_step_000002").mkdir()  # killed after both
    newest = open_checkpoints(tmp_path, Trainer()).newest()
    assert newest is not None and (await checkpoints.load(newest))["state"] == 20
    assert names(tmp_path) == ["step_000001", "step_000002"]


@pytest.mark.parametrize("file", ["driver.json", "driver.blake2b"])
@pytest.mark.parametrize("data", [None, b"", b'{"step": 1, "state": 11}', b"\xff\xfe"])
async def test_a_damaged_part_of_the_driver_is_named(tmp_path: Path, file: str, data: bytes | None):
    checkpoints = open_checkpoints(tmp_path, Trainer())
    await save_all(checkpoints, 1)
    path = tmp_path / "step_000001" / file
    path.unlink()
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"driver\.json .*move this checkpoint away"):
        await checkpoints.load(tmp_path / "step_000001")


async def test_the_trainers_state_is_that_of_the_beginning_and_the_drivers_that_of_the_save(tmp_path: Path):
    trainer = Trainer()
    checkpoints = open_checkpoints(tmp_path, trainer)
    trainer.word = "before the sync"
    await checkpoints.begin(step=1)
    assert checkpoints.newest() is None, "without the driver's it is none"
    trainer.word = "after it"
    await checkpoints.save(step=1, driver={"totals": 7})
    await checkpoints.settle()
    newest = checkpoints.newest()
    assert newest is not None and await checkpoints.load(newest) == {"step": 1, "totals": 7}
    assert trainer.word == "before the sync"


async def test_a_beginning_that_failed_is_told_once_and_not_made_up_for(tmp_path: Path):
    class Full(Trainer):
        async def begin_save(self, folder: Path) -> None:
            raise CheckpointError("no room")

    said: list[str] = []
    checkpoints = open_checkpoints(tmp_path, Full(), said, stop_on_failed_save=False)
    await checkpoints.begin(step=1)
    await checkpoints.save(step=1, driver={})
    await checkpoints.settle()
    assert len(said) == 1 and "no room" in said[0] and names(tmp_path) == []


async def test_a_driver_that_cannot_be_written_leaves_the_trainer_free_for_the_next_save(tmp_path: Path, monkeypatch):
    finished, said = [], []

    class Counting(Trainer):
        async def finish_save(self) -> None:
            finished.append(self._folder)

    def full(*_: object) -> None:
        raise OSError("No space left on device")

    checkpoints = open_checkpoints(tmp_path, Counting(), said, stop_on_failed_save=False)
    with monkeypatch.context() as patch:
        patch.setattr("vime.run_checkpoints._write_driver", full)
        await checkpoints.save(step=1, driver={})
    assert len(finished) == 1 and "No space left" in said[0]
    await save_all(checkpoints, 2)
    assert names(tmp_path) == ["step_000002"]


async def test_the_event_loop_turns_while_the_drivers_state_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    turned, write = threading.Event(), run_checkpoints._write_driver

    def slowly(*arguments: Any) -> None:
        assert turned.wait(10), "the loop did not turn"
        write(*arguments)

    monkeypatch.setattr(run_checkpoints, "_write_driver", slowly)
    checkpoints = open_checkpoints(tmp_path, Trainer())
    saving = asyncio.create_task(checkpoints.save(step=1, driver={"buffer": {"slots": {"0": [1]}}}))
    await asyncio.sleep(0)
    turned.set()
    await saving
    await checkpoints.settle()
    assert await checkpoints.load(tmp_path / "step_000001") == {"step": 1, "buffer": {"slots": {"0": [1]}}}


async def test_at_the_end_of_a_run_it_is_the_trainer_that_waits_for_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("vime.run_checkpoints.POLL_SECONDS", 600.0)
    trainer = Trainer()
    checkpoints = open_checkpoints(tmp_path, trainer)
    trainer.hold()
    await checkpoints.save(step=5, driver={})
    await asyncio.sleep(0)
    await asyncio.wait_for(checkpoints.close(failed=False), 60)
    assert names(tmp_path) == ["step_000005"]
