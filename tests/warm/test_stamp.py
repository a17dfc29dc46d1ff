"""A process that has loaded other code, or was started under other variables, must not make a run."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from vime.warm.stamp import changed_code, changed_variable, stamp_of_code


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module of a user, loaded from its folder, which holds a prompt as well."""
    file = tmp_path / "agent_of_this_test.py"
    file.write_text("PROMPT = 'a'")
    (tmp_path / "prompt.txt").write_text("Think.")
    (tmp_path / "notes.log").write_text("started")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module(file.stem)
    yield file
    del sys.modules[file.stem]


def test_code_that_stays_as_it_was_is_no_reason(agent: Path):
    stamp = stamp_of_code()
    assert str(agent) in stamp and changed_code(stamp) == ""
    assert not any("site-packages" in file for file in stamp)


@pytest.mark.parametrize("name", ["agent_of_this_test.py", "prompt.txt", "new.py"])
def test_a_file_that_is_changed_or_added_beside_a_loaded_module_is_named(agent: Path, name: str):
    stamp = stamp_of_code()
    (agent.parent / name).write_text("PROMPT = 'another'")
    assert changed_code(stamp) == str(agent.parent / name)


def test_a_file_that_is_removed_is_named_and_a_log_that_grows_is_not(agent: Path):
    stamp = stamp_of_code()
    (agent.parent / "notes.log").write_text("started, ended")
    assert changed_code(stamp) == ""
    (agent.parent / "prompt.txt").unlink()
    assert changed_code(stamp) == str(agent.parent / "prompt.txt")


def test_variables_of_the_terminal_may_differ_and_no_others():
    before = {"HOME": "/home/user", "COLUMNS": "80", "OPENAI_API_KEY": "a"}
    assert changed_variable(before, before | {"COLUMNS": "120", "SHLVL": "2"}) == ""
    assert changed_variable(before, before | {"OPENAI_API_KEY": "b"}) == "OPENAI_API_KEY"
    assert changed_variable(before, before | {"WANDB_MODE": "offline"}) == "WANDB_MODE"
    assert changed_variable(before, {"HOME": "/home/user"}) == "OPENAI_API_KEY"
