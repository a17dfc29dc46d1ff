"""The environments that the READMEs show, in an empty folder: their rows, a game, and the plan of their commands."""

import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.environments.test_play import played
from vime.environments.environment import load_environment, rows
from vime.types import StopReason

ROOT = Path(__file__).parents[2]


def shown(readme: str) -> str:
    """The code of the class `Guess` of a README, with its imports."""
    text = (ROOT / readme).read_text()
    start = text.index("    from itertools import count\n")
    lines = text[start:].splitlines(keepends=True)
    end = next(place for place, line in enumerate(lines) if line.strip() and not line.startswith("    "))
    code = "".join(line for line in lines[:end] if "python -m vime.run" not in line)
    return textwrap.dedent(code)


@pytest.mark.parametrize(
    ("readme", "replies", "reward", "illegal"),
    [("agentic/README.md", ["7", "3"], 1.0, 0), ("vime/environments/README.md", ["hm", "50", "3"], 1.0, 1)],
)
async def test_the_class_of_a_readme_is_played(
    readme: str, replies: list[str], reward: float, illegal: int, tmp_path: Path, byte_tokenizer: Any
):
    code = shown(readme)
    assert len([line for line in code.splitlines() if line.strip()]) <= 25
    (tmp_path / "guess.py").write_text(code)
    name = f"{tmp_path / 'guess.py'}:Guess"
    found = rows(20, 0, environment=name)
    assert len(found) == 20 and all(row["prompt"] == [] for row in found)
    rollout = await played(byte_tokenizer, load_environment(name, {}), replies, row={"number": 3})
    assert rollout.stop_reason is StopReason.ANSWERED and rollout.reward == reward
    assert rollout.counts.get("illegal_moves", 0) == illegal
