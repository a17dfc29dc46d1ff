"""The environments that the READMEs show, in an empty folder: their rows, a game, and the plan of their commands."""

import asyncio
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.environments.test_play import played
from vime.cluster.ports import free_port
from vime.environments.environment import load_environment, rows
from vime.environments.harness import run_harness
from vime.types import StopReason

ROOT = Path(__file__).parents[2]


def shown(readme: str, begins: str = "from itertools import count") -> str:
    """The code of a README from a line on, up to the next text or command."""
    text = (ROOT / readme).read_text()
    start = text.index(f"    {begins}\n")
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


async def test_the_environment_with_an_agent_of_its_own_runs_in_another_python(tmp_path: Path, byte_tokenizer: Any):
    code = shown("agentic/README.md", "# sums.py")
    assert len([line for line in code.splitlines() if line.strip()]) <= 25
    (tmp_path / "sums.py").write_text(code)
    bridge = load_environment("bridge", {"python": sys.executable, "adapter": f"{tmp_path / 'sums.py'}:Sums"})
    try:
        row = bridge.rows(split="train", num_items=5, seed=0)[4]
        for text, reward in ((str(row["sum"]), 1.0), ("hm", 0.0)):
            rollout = await played(byte_tokenizer, bridge, [text], episode=run_harness, row=row)
            assert rollout.stop_reason is StopReason.ANSWERED and rollout.reward == reward
    finally:
        bridge.close()


async def test_the_environment_behind_a_url_is_played(tmp_path: Path, byte_tokenizer: Any):
    code = shown("agentic/README.md", "# world.py")
    assert len([line for line in code.splitlines() if line.strip()]) <= 25
    port = free_port("127.0.0.1", 0)
    (tmp_path / "world.py").write_text(code.replace("8000", str(port)))
    server = subprocess.Popen([sys.executable, "world.py"], cwd=tmp_path, stdout=subprocess.DEVNULL)
    try:
        async with asyncio.timeout(60):
            await until_it_listens(port)
        url = f"http://127.0.0.1:{port}"
        rollout = await played(byte_tokenizer, load_environment("openenv", {"url": url}), ["4", "3"], row={"seed": 103})
        assert rollout.stop_reason is StopReason.ANSWERED and rollout.reward == 1.0
    finally:
        server.kill()
        server.wait()


async def until_it_listens(port: int) -> None:
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionError:
            await asyncio.sleep(0.1)
        else:
            writer.close()
            return
