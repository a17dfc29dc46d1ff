"""Functions of the user, from a file outside the repository: accepted by path for every hook, refused if they do not fit."""

import inspect
from pathlib import Path

import pytest

from vime.errors import HookError, Problem
from vime.hooks import HOOKS, INSTANCES, check_hook, load_hook, load_named


def parameters_of(key: str) -> list[str]:
    """The parameters that a hook gets, without `self`."""
    return list(inspect.signature(HOOKS[key].__call__).parameters)[1:]


def is_async(key: str) -> bool:
    """True if a hook must be a coroutine function."""
    return inspect.iscoroutinefunction(HOOKS[key].__call__)


def write(folder: Path, source: str) -> str:
    """Writes a module outside the repository; returns the hook path of its `hook`."""
    file = folder / "mine.py"
    file.write_text(source)
    return f"{file}:hook"


def definition(key: str, *, parameters: list[str] | None = None, coroutine: bool | None = None) -> str:
    """Source of a function or class named `hook` that fits a key, but for what is changed."""
    if key in INSTANCES:
        taken = ", ".join(["self", *(parameters_of(key) if parameters is None else parameters)])
        return f"class hook:\n    def __init__({taken}):\n        pass\n    async def batch(self, version):\n        return []\n"
    keyword = "async def" if (is_async(key) if coroutine is None else coroutine) else "def"
    return f"{keyword} hook({', '.join(parameters_of(key) if parameters is None else parameters)}):\n    return None\n"


@pytest.mark.parametrize("key", HOOKS)
def test_a_function_from_a_file_is_accepted(key: str, tmp_path: Path):
    assert check_hook(key, write(tmp_path, definition(key))) == []


@pytest.mark.parametrize("key", HOOKS)
def test_a_file_is_found_by_its_relative_path(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write(tmp_path, definition(key))
    monkeypatch.chdir(tmp_path)
    assert check_hook(key, "mine.py:hook") == []


@pytest.mark.parametrize("key", HOOKS)
def test_a_function_with_optional_parameters_more_is_accepted(key: str, tmp_path: Path):
    assert check_hook(key, write(tmp_path, definition(key, parameters=[*parameters_of(key), "extra=1"]))) == []


@pytest.mark.parametrize("key", HOOKS)
def test_a_function_with_a_parameter_too_many_is_refused(key: str, tmp_path: Path):
    path = write(tmp_path, definition(key, parameters=[*parameters_of(key), "unexpected"]))
    problem = only(check_hook(key, path))
    assert (problem.key, problem.value) == (key, path)
    assert "wrong signature" in problem.remedy and "unexpected" in problem.remedy
    assert f"hook({', '.join(parameters_of(key))})" in problem.remedy


@pytest.mark.parametrize("key", HOOKS)
def test_a_function_with_a_parameter_too_few_is_refused(key: str, tmp_path: Path):
    path = write(tmp_path, definition(key, parameters=parameters_of(key)[1:]))
    assert "wrong signature" in only(check_hook(key, path)).remedy


@pytest.mark.parametrize("key", [key for key in HOOKS if is_async(key)])
def test_a_function_that_must_be_async_and_is_not_is_refused(key: str, tmp_path: Path):
    assert "must be async" in only(check_hook(key, write(tmp_path, definition(key, coroutine=False)))).remedy


@pytest.mark.parametrize("key", [key for key in HOOKS if not is_async(key) and key not in INSTANCES])
def test_a_function_that_must_not_be_async_is_refused(key: str, tmp_path: Path):
    assert "must not be async" in only(check_hook(key, write(tmp_path, definition(key, coroutine=True)))).remedy


GOOD = "    async def batch(self, version): ...\n"


@pytest.mark.parametrize(
    ("methods", "words"),
    [
        ("    pass\n", "async def batch(self, version)"),
        ("    def batch(self, version): ...\n", "async def batch(self, version)"),
        ("    async def batch(self): ...\n", "async def batch(self, version)"),
        ("    batch = 3\n", "async def batch(self, version)"),
        (f"{GOOD}    def stop(self): ...\n", "async def stop(self)"),
        (f"{GOOD}    def state(self): ...\n", "one of state and load"),
        (f"{GOOD}    def state(self): ...\n    async def load(self, state): ...\n", "def load(self, state)"),
    ],
)
def test_a_producer_without_the_methods_it_needs_is_refused(methods: str, words: str, tmp_path: Path):
    source = f"class hook:\n    def __init__(self, config, source, runner): ...\n{methods}"
    assert words in only(check_hook("rollout.producer", write(tmp_path, source))).remedy


def test_a_producer_is_a_class(tmp_path: Path):
    assert (
        "not a class" in only(check_hook("rollout.producer", write(tmp_path, "def hook(config, source, runner): ...\n"))).remedy
    )


def test_a_named_function_says_its_name_and_place_when_it_raises(tmp_path: Path):
    path = write(tmp_path, "def hook(config, groups):\n    return {}[7]\n")
    with pytest.raises(HookError) as raised:
        load_named("algorithm.advantage", path)(None, [])
    assert str(raised.value).startswith(f"algorithm.advantage={path} raised KeyError: 7\n")
    assert "line 2, in hook" in str(raised.value)


@pytest.mark.parametrize("key", HOOKS)
@pytest.mark.parametrize("path", ["{folder}/none.py:hook", "{folder}/mine.py:other", "no.such.module.hook", "hook", ".mine.hook"])
def test_what_cannot_be_found_is_refused(key: str, path: str, tmp_path: Path):
    write(tmp_path, definition(key))
    assert "cannot be imported" in only(check_hook(key, path.format(folder=tmp_path))).remedy


def test_a_file_with_a_mistake_is_refused_with_its_line(tmp_path: Path):
    remedy = only(check_hook("method.generate", write(tmp_path, "async def hook(:\n"))).remedy
    assert "cannot be imported" in remedy and "mine.py" in remedy


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("hook = missing\n", "NameError: name 'missing' is not defined"),
        ("raise ValueError('first line\\nsecond line')\n", "ValueError: first line second line"),
        ("import os\nos.environ['VIME_NO_SUCH_VARIABLE']\n", "KeyError: 'VIME_NO_SUCH_VARIABLE'"),
        ("import sys\nsys.exit(3)\n", "SystemExit: 3"),
    ],
)
def test_a_file_that_fails_is_refused_with_what_it_raised(source: str, said: str, tmp_path: Path):
    remedy = only(check_hook("method.generate", write(tmp_path, source))).remedy
    assert f"cannot be imported ({said})" in remedy


def test_what_is_no_function_is_refused(tmp_path: Path):
    assert "not a function" in only(check_hook("algorithm.loss", write(tmp_path, "hook = 3\n"))).remedy


def test_two_files_of_one_name_are_two_modules(tmp_path: Path):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        write(tmp_path / name, f"def hook(config, group):\n    return {name!r}\n")
    found = [load_hook(f"{tmp_path / name}/mine.py:hook")(None, None) for name in ("first", "second")]
    assert found == ["first", "second"]


def only(problems: list[Problem]) -> Problem:
    """The single problem of a list."""
    assert len(problems) == 1, problems
    return problems[0]
