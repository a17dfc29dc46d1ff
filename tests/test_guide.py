"""The guide "Your own agent" in `agentic/README.md` works as it stands: its files and its command, in an empty folder."""

import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

GUIDE = Path(__file__).resolve().parent.parent / "agentic" / "README.md"
FILE = re.compile(r"^# (\S+\.(?:py|jsonl))$")
NUM_STEPS = 6


def blocks() -> list[str]:
    """The indented blocks of the guide."""
    text = GUIDE.read_text().split("## Your own agent")[1]
    return [textwrap.dedent(block).strip() for block in re.findall(r"(?:(?:^ {4}.*)?\n)+", text, re.M) if block.strip()]


def files_and_commands() -> tuple[dict[str, str], list[str]]:
    """Files by name, each begun by a comment with its name, and the lines that start vime."""
    files: dict[str, str] = {}
    commands: list[str] = []
    for block in blocks():
        name = ""
        for line in block.splitlines():
            if found := FILE.match(line):
                name = found[1]
                files[name] = ""
            elif name:
                files[name] += line + "\n"
            else:
                commands.append(line)
    return files, commands


def test_the_guides_agent_learns_from_an_empty_folder(tmp_path: Path):
    files, commands = files_and_commands()
    assert set(files) == {"mine.py", "questions.jsonl"} and len(commands) == 1
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    _, *words = shlex.split(commands[0])
    environment = {**os.environ, "PYTHONPATH": str(GUIDE.parent.parent)}
    done = subprocess.run(
        [sys.executable, *words, f"trainer.num_steps={NUM_STEPS}"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    run = tmp_path / "outputs" / "latest"
    rewards = [json.loads(line)["reward/mean"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert len(rewards) == NUM_STEPS and rewards[-1] > rewards[0] + 0.1, f"it has not learned: {rewards}"
    assert (run / "report.html").is_file() and len(list((run / "rollouts").glob("step_*.jsonl"))) == NUM_STEPS
