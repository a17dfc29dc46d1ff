"""What a resumed run keeps of the run before."""

from pathlib import Path

from vime.rollout.evaluation import Job
from vime.session import forget_evaluations_after


def test_items_of_evaluations_after_the_resumed_step_are_forgotten(tmp_path: Path):
    def items(row: str, label: str = "") -> Path:
        path = tmp_path / Job(dataset="docs_20", row=row, run=0, temperature=1.0, label=label).file_name
        path.touch()
        return path

    before, at, after, log = (
        items("scaffold"),
        items("trained", "step10"),
        items("trained", "step20"),
        tmp_path / "docs_20-trained-step20.json",
    )
    log.touch()
    forget_evaluations_after(tmp_path, 10)
    assert [path.exists() for path in (before, at, after, log)] == [True, True, False, False]
