"""Remains of users' code in a process are found, and its modules are loaded anew."""

import importlib
import os
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import pytest

from vime.hooks import load_hook
from vime.processes.users_code import Untouched

COUNTER = """
count = 0

def call():
    global count
    count += 1
    return count
"""


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package of a user, with a function that counts its calls."""
    name = f"counting_agent_{uuid.uuid4().hex}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").touch()
    (tmp_path / name / "calls.py").write_text(COUNTER)
    monkeypatch.syspath_prepend(str(tmp_path))
    return f"{name}.calls.call"


def test_a_process_in_which_nothing_is_left_is_as_it_was():
    assert Untouched.now().changed() == ""


def test_variables_folders_and_search_paths_that_were_changed_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    untouched = Untouched.now()
    monkeypatch.setenv("LEFT_BY_THIS_TEST", "1")
    assert "LEFT_BY_THIS_TEST" in untouched.changed()
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert "folder" in untouched.changed()
    monkeypatch.undo()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "search path" in untouched.changed()
    monkeypatch.undo()
    assert untouched.changed() == ""


def test_threads_and_programs_that_were_left_are_found():
    untouched, end = Untouched.now(), threading.Event()
    thread = threading.Thread(target=end.wait, name="of a user")
    thread.start()
    assert "of a user" in untouched.changed()
    end.set()
    thread.join()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as program:
        assert str(program.pid) in untouched.changed()
        program.communicate(b"\n")
    assert untouched.changed() == ""


def test_programs_of_vime_that_wait_and_what_libraries_set_are_left_as_they_are(monkeypatch: pytest.MonkeyPatch):
    untouched = Untouched.now()
    monkeypatch.setenv("KMP_INIT_AT_FORK", "FALSE")
    with subprocess.Popen([sys.executable, "-m", "vime.grading.maths_worker"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL):
        assert untouched.changed() == ""


@pytest.mark.parametrize("is_loaded_before", [False, True])
def test_a_users_package_is_loaded_anew_with_nothing_that_it_kept(agent: str, is_loaded_before: bool):
    if is_loaded_before:  # as with the settings of a method, which come with the configuration
        importlib.import_module(agent.partition(".")[0])
    untouched = Untouched.now()
    assert [load_hook(agent)(), load_hook(agent)()] == [1, 2]
    untouched.forget_modules([agent])
    assert load_hook(agent)() == 1


def test_a_module_that_no_hook_names_is_forgotten_unless_it_was_there_before(agent: str):
    untouched = Untouched.now()
    assert load_hook(agent)() == 1
    later = Untouched.now()
    later.forget_modules([])
    assert load_hook(agent)() == 2
    untouched.forget_modules([])
    assert load_hook(agent)() == 1


def test_a_file_is_loaded_anew(tmp_path: Path):
    (tmp_path / "agent.py").write_text(COUNTER)
    path, untouched = f"{tmp_path / 'agent.py'}:call", Untouched.now()
    assert [load_hook(path)(), load_hook(path)()] == [1, 2]
    untouched.forget_modules([path])
    assert load_hook(path)() == 1


def test_vime_and_packages_with_modules_in_c_stay():
    import numpy

    hooks = ["vime.hooks.load_hook", "numpy.mean", "os.getcwd"]
    Untouched.now().forget_modules([*hooks])
    assert sys.modules["vime.hooks"].load_hook is load_hook and sys.modules["numpy"] is numpy and sys.modules["os"] is os
