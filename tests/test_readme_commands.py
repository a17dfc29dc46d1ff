"""Every command of `python -m vime.run` that a README prints composes to a run that the rules accept, as in `mode=plan`."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from vime.preflight.compose import compose_run
from vime.preflight.launchers import without_launcher
from vime.preflight.search_path import CONF
from vime.preflight.sweep import expand
from vime.preflight.validation import find_problems

pytestmark = pytest.mark.usefixtures("some_strands_python")

ROOT = CONF.parent
PROGRAM = "python -m vime.run"
READMES = sorted(
    file for folder in ("", "*/", "*/*/", "*/*/*/") for file in ROOT.glob(f"{folder}README.md") if ".venv" not in file.parts
)
OWN_OPTIONS = {"+method=mine", "+experiment=mine"}
"""Options that the reader has written before, with `vime new` or by hand."""
OF_EARLIER_RUNS = {"resume=true"}
"""Words that need an earlier run of the reader."""
ANY_METHOD = "+method=…"
OTHER_PROGRAMS = {"--help", "--cfg", "new"}
"""Words that start nothing but show or write something."""
OWN_FILES = {
    "mine.py": """
async def generate(context, sample, sampling): ...
async def reward(context, samples): ...
def solution(row, sample): ...
""",
    "shop.py": """
async def generate(context, sample, sampling): ...
async def reward(context, samples): ...
""",
    "guess.py": """
class Guess:
    def rows(self, *, split, num_items, seed): ...
    def open(self, row): ...
""",
    "my_file.py": """
class Hardest:
    def __init__(self, config, source, runner): ...
    async def batch(self, version): ...
""",
    "my_tool.py": """
from agentic.agentflow.tools.tool import Tool
class Mine(Tool):
    description = "Finds nothing."
    async def execute(self, context, query): ...
""",
    "my_package/my_module.py": "def passages(**arguments): return []",
}
"""Files of the reader, as the READMEs describe them."""


def commands(text: str) -> Iterator[str]:
    """The commands in the code blocks and between the backticks of a page, with their continued lines."""
    whole = text.replace("\\\n", " ")
    for line in whole.splitlines():
        if line.startswith("    ") and PROGRAM in line:
            yield line[line.index(PROGRAM) :]
    yield from (found for found in re.findall(r"`([^`\n]+)`", whole) if found.startswith(PROGRAM))


def words_of(command: str) -> list[str]:
    """The words behind the program, without a comment."""
    return shlex.split(command, comments=True)[len(PROGRAM.split()) :]


ALL = sorted(
    {(str(file.relative_to(ROOT)), command) for file in READMES for command in commands(file.read_text(encoding="utf-8"))}
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a reader who has written the files that the READMEs let him write."""
    made = tmp_path_factory.mktemp("reader")
    for name, text in OWN_FILES.items():
        (made / name).parent.mkdir(exist_ok=True)
        (made / name).write_text(text)
    return made


def test_the_commands_of_the_readmes_are_found():
    assert len(ALL) > 80 and {"README.md", "conf/README.md", "vime/warm/README.md"} <= {page for page, _ in ALL}


def points_of(words: list[str]) -> list[list[str]]:
    """The words of each run that a command starts."""
    if "--multirun" not in words and not any(word.startswith("+sweep=") for word in words):
        return [words]
    return [without_launcher(point) for point in expand([word for word in words if word != "--multirun"]).points]


@pytest.mark.parametrize(("page", "command"), ALL)
def test_a_printed_command_is_accepted(page: str, command: str, folder: Path, monkeypatch: pytest.MonkeyPatch):
    words = ["+method=memagent" if word == ANY_METHOD else word for word in words_of(command) if word not in OF_EARLIER_RUNS]
    if not words or OTHER_PROGRAMS & set(words) or OWN_OPTIONS & set(words) or any("…" in word for word in words):
        return
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    for point in points_of(words):
        plan = [word for word in point if not word.startswith("mode=")] if "mode=plan" in point else point
        assert [str(problem) for problem in find_problems(compose_run([*plan, "mode=plan"]).config)] == []
