"""The guide "Your own agent" in `agentic/README.md` works as written: its files and its commands, from an empty folder."""

import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from vime.config import RunConfig
from vime.preflight.compose import compose_run

pytestmark = [pytest.mark.slow, pytest.mark.in_turn]

GUIDE = Path(__file__).resolve().parent.parent / "agentic" / "README.md"
FILE = re.compile(r"# (\S+\.(?:py|jsonl|yaml))\n")
PROGRAMS = {"python": [sys.executable], "vime": [sys.executable, "-m", "vime.run"]}


def blocks() -> list[str]:
    """The indented blocks of the guide."""
    text = GUIDE.read_text().split("## Your own agent")[1].split("\n## ")[0]
    return [textwrap.dedent(block).strip() + "\n" for block in re.findall(r"(?:(?:^ {4}.*)?\n)+", text, re.M) if block.strip()]


def shown_files() -> dict[str, str]:
    """Files by name: blocks that begin with a comment that is their name."""
    return {found[1]: block[found.end() :] for block in blocks() if (found := FILE.match(block))}


def commands() -> list[list[str]]:
    """The words of every command, in the order of the guide."""
    return [shlex.split(line) for block in blocks() if not FILE.match(block) for line in block.splitlines()]


def do(words: list[str], folder: Path) -> str:
    """Runs a command of the guide in a folder; returns what it shows."""
    command = [*PROGRAMS[words[0]], *words[1:]]
    environment = {**os.environ, "PYTHONPATH": str(GUIDE.parent.parent)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the guide's first two commands lead to."""
    write, enter = commands()[:2]
    folder = tmp_path_factory.mktemp("empty")
    do(write, folder)
    assert enter[0] == "cd"
    return folder / enter[1]


def test_the_guide_shows_the_files_that_are_written(mine: Path):
    files = shown_files()
    written = {str(file.relative_to(mine)) for file in mine.rglob("*") if file.is_file()}
    assert written == set(files) | {"conf/vime.yaml", "test_mine.py"} and len(files) == 3
    assert {name: (mine / name).read_text() for name in files} == files


def test_the_tests_of_the_new_agent_pass(mine: Path):
    test = next(words for words in commands() if "pytest" in words)
    assert "2 passed" in do(test, mine)


def test_the_command_without_a_recipe_is_the_same_run(mine: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(mine)
    runs = [words[words.index("vime.run") + 1 :] for words in commands() if "vime.run" in words]
    assert len(runs) == 2

    def unnamed(config: RunConfig) -> RunConfig:
        return replace(config, name="", output_dir=None, method=replace(config.method, name=""))

    with_recipe, without = (compose_run(words).config for words in runs)
    assert unnamed(with_recipe) == unnamed(without)


@pytest.mark.long
def test_the_guides_agent_learns(mine: Path):
    do(next(words for words in commands() if "+method=mine" in words), mine)
    run = mine / "outputs" / "latest"
    rewards = [json.loads(line)["reward/mean"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert rewards[-1] > rewards[0] + 0.1, f"it has not learned: {rewards}"
    assert (run / "report.html").is_file() and len(list((run / "rollouts").glob("step_*.jsonl"))) == len(rewards) == 8
