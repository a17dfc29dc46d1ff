"""Advantages of the user end the run with the function's name when they cannot be trained on."""

from pathlib import Path

import pytest

from vime.algorithm.own_advantage import own_advantage
from vime.config import AlgorithmConfig
from vime.errors import HookError
from vime.types import Group, Prompt, Rollout, Sample

PROMPT = Prompt(index=0, row=0, messages=[], ground_truth=[])
GROUPS = [Group(prompt=PROMPT, rollouts=[Rollout(rollout_id=4, group_index=0, samples=[Sample(), Sample()])])]


def found(folder: Path, result: str) -> object:
    """What a function of the user gives that returns this expression."""
    (folder / "mine.py").write_text(f"def advantage(config, groups):\n    return {result}\n")
    return own_advantage(f"{folder}/mine.py:advantage")(AlgorithmConfig(), GROUPS)


@pytest.mark.parametrize("good", [{}, {4: 0.5}, {4: [0.5, -0.5]}])
def test_good_advantages_are_taken(good: dict, tmp_path: Path):
    assert found(tmp_path, repr(good)) == good


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ("None", "returned NoneType"),
        ("groups[3]", "raised IndexError"),
        ("{5: 1.0}", "rollout 5, which is not in the batch"),
        ("{4: [1.0]}", "1 advantages for the 2 samples of rollout 4"),
        ("{4: float('nan')}", "must be finite"),
    ],
)
def test_others_end_the_run_with_the_functions_name(result: str, words: str, tmp_path: Path):
    with pytest.raises(HookError, match=r"algorithm\.advantage=.*mine\.py:advantage") as raised:
        found(tmp_path, result)
    assert words in str(raised.value)
