"""An error in a user's code is found by file and line, however vime's and libraries' frames surround it."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vime.blame import MOST_CHARACTERS, blamed, place, users_traceback
from vime.hooks import load_hook
from vime.rollout.within import within

AGENT = """
import json

async def generate(context, sample, sampling):
    return helper(sample)

def helper(sample):
    return json.loads(sample)
"""


@pytest.fixture
def error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BaseException:
    """An agent's error in a library that it called, as `run_rollout` gets it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_agent.py").write_text(AGENT)
    hook = load_hook("my_agent.py:generate")
    with pytest.raises(json.JSONDecodeError) as raised:
        asyncio.run(within(hook(None, "{", None), 10.0))
    within_vime = raised.value.__traceback__
    assert within_vime is not None
    return raised.value.with_traceback(within_vime.tb_next)  # without the frame of this test


def test_the_last_line_of_the_users_file_is_named_and_not_the_librarys(error: BaseException) -> None:
    assert place(error) == "my_agent.py:8"
    assert blamed(error).endswith("(my_agent.py:8)") and blamed(error).startswith("JSONDecodeError: ")


def test_the_traceback_begins_with_the_user(error: BaseException) -> None:
    lines = users_traceback(error).splitlines()
    assert "my_agent.py" in lines[1] and "in generate" in lines[1], "no frame of vime before it"
    assert "JSONDecodeError" in lines[-1]


def test_a_cause_is_where_the_error_arose(tmp_path: Path) -> None:
    try:
        try:
            raise KeyError("answer")
        except KeyError as cause:
            raise RuntimeError("no answer") from cause
    except RuntimeError as error:
        told = users_traceback(error)
    assert told.index("KeyError: 'answer'") < told.index("which led to") < told.index("RuntimeError: no answer")


def test_what_was_never_raised_has_no_place() -> None:
    assert place(ValueError("x")) == "" and blamed(ValueError("x")) == "ValueError: x"


def test_a_traceback_is_bounded() -> None:
    assert len(users_traceback(ValueError("x" * 10**6))) == MOST_CHARACTERS


def test_an_installed_agent_without_a_file_of_the_user_is_named_by_the_last_place() -> None:
    """Runs as in a process whose working folder holds none of the code."""
    code = "from vime.blame import place\nimport json\ntry: json.loads('{')\nexcept Exception as e: print(place(e))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ))
    assert "decoder.py:" in found.stdout
