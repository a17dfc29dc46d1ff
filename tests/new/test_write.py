"""`vime new` writes a folder that holds what a user would write, or says why not and writes nothing."""

from pathlib import Path

import pytest
from setuptools.config.pyprojecttoml import read_configuration

from vime import run
from vime.errors import ConfigError
from vime.new.write import TEMPLATE, write_agent
from vime.preflight.search_path import CONF, MARKER

ROOT = CONF.parent


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_folder_holds_what_a_user_would_write_and_its_own_name(empty_folder: Path):
    shown = write_agent(["my_agent"])
    written = {str(file.relative_to(empty_folder)) for file in empty_folder.rglob("*") if file.is_file()}
    names = ("my_agent.py", f"conf/{MARKER}", "conf/method/my_agent.yaml", "questions.jsonl", "test_my_agent.py")
    assert written == {f"my_agent/{name}" for name in names}
    assert all(file in shown for file in written) and "+method=my_agent" in shown
    assert not any("NAME" in file.read_text() for file in empty_folder.rglob("*") if file.is_file())


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        *((name, "not a name") for name in ("Mine", "a-b", "../up", "class", "null", "")),
        ("memagent", "a method of this name"),
        ("json", "which yours would hide"),
        ("taken", "exists"),
    ],
)
def test_a_bad_name_ends_with_2_and_writes_nothing(
    name: str, reason: str, empty_folder: Path, capsys: pytest.CaptureFixture[str]
):
    (empty_folder / "taken").mkdir()
    with pytest.raises(SystemExit) as ended:
        run.main(["new", name])
    assert ended.value.code == run.CONFIG_ERROR and reason in capsys.readouterr().err
    assert list(empty_folder.rglob("*")) == [empty_folder / "taken"]


@pytest.mark.parametrize("words", [[], ["one", "two"]])
def test_anything_but_one_name_is_refused(words: list[str]):
    with pytest.raises(ConfigError, match="use one name"):
        write_agent(words)


def test_a_method_of_the_folder_above_is_not_written_again(empty_folder: Path):
    (empty_folder / "conf" / "method").mkdir(parents=True)
    (empty_folder / "conf" / MARKER).touch()
    (empty_folder / "conf" / "method" / "mine.yaml").touch()
    with pytest.raises(ConfigError, match="there already is a method of this name"):
        write_agent(["mine"])


def test_the_template_is_part_of_the_wheel():
    project = read_configuration(ROOT / "pyproject.toml", expand=False)
    patterns = project["tool"]["setuptools"]["package-data"]["vime"]
    shipped = {file for pattern in patterns for file in (ROOT / "vime").glob(pattern)}
    template = {file for file in TEMPLATE.rglob("*") if file.is_file()}
    assert len(template) == 5 and template <= shipped
