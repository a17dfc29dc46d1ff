"""A sample of one turn, as a rollout's trajectory makes it."""

from typing import Any

from vime.trajectory.trajectory import CallPrompt, Trajectory
from vime.types import Sample, Turn


def sample_of(template: Sample, turn: Turn, **metadata: Any) -> Sample:
    """The sequence of a rollout in which this turn alone was sampled."""
    trajectory = Trajectory()
    trajectory.begin(CallPrompt.behind(None, turn.prompt_ids), model="actor").finish(turn, turn.message or {"content": "-"})
    return trajectory.samples(template, metadata)[0]
