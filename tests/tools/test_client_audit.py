"""The audit of what real clients did: it passes what is right, and finds each way to be wrong."""

import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[2] / "tools"))

from client_audit import audit

from vime.types import Sample, Turn

ONE = ([5, 6], Turn(output_ids=[9, 8], logprobs=[-1.0, -2.0], weight_versions=[1, 1]))
TWO = ([5, 6, 9, 8, 7], Turn(output_ids=[4], logprobs=[-3.0], weight_versions=[1]))


def sequence(**changes: Any) -> Sample:
    """Both turns as one sequence."""
    right: dict[str, Any] = {"tokens": [5, 6, 9, 8, 7, 4], "response_length": 4, "loss_mask": [1, 1, 0, 1]}
    right |= {"rollout_log_probs": [-1.0, -2.0, 0.0, -3.0], "weight_versions": [1, 1, 1, 1]}
    sample = Sample()
    for name, value in (right | changes).items():
        setattr(sample, name, value)
    return sample


def problems(*samples: Sample, delivered: bool = True) -> list[str]:
    replies = [SimpleNamespace(delivered=True, message={}), SimpleNamespace(delivered=delivered, message={})]
    dialogue = SimpleNamespace(statistics=SimpleNamespace(forks=Counter()), calls=replies)
    session: Any = SimpleNamespace(dialogue=dialogue)
    return audit(session, list(samples), [ONE, TWO]).problems


def test_turns_that_are_trained_once_behind_their_prompts_pass():
    assert problems(sequence()) == []
    assert problems(sequence(loss_mask=[1, 1, 0, 0]), sequence(loss_mask=[0, 0, 0, 1])) == []
    assert problems(sequence(loss_mask=[1, 1, 0, 0]), delivered=False) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"tokens": [5, 6, 9, 3, 7, 4]},
        {"tokens": [5, 5, 9, 8, 7, 4]},
        {"rollout_log_probs": [-1.0, -2.5, 0.0, -3.0]},
        {"loss_mask": [1, 0, 0, 1]},
        {"loss_mask": [1, 1, 1, 1]},
        {"loss_mask": [1, 1, 0, 0]},
    ],
)
def test_wrong_tokens_prompts_logprobs_and_masks_are_found(changes: dict[str, Any]):
    assert problems(sequence(**changes))


def test_a_turn_that_is_trained_twice_is_found():
    assert problems(sequence(), sequence())
