"""Cheats are worth nothing and are counted by their reasons; honest work in the same places is worth what it is worth."""

import asyncio
from dataclasses import replace

import pytest

from agentic.coding.grading import GradingConfig, fresh_workspaces
from agentic.coding.repository import prepare_repository
from agentic.coding.verdict import Verdict, judge
from tests.agentic.coding import cheats_in_code, cheats_in_files, cheats_on_the_judge
from tests.agentic.coding.cheating import RIGHT, TASK, WRONG, Cheat
from vime.agent.workspace import Workspace
from vime.config import WorkspaceConfig

pytestmark = pytest.mark.slow
SMALL = WorkspaceConfig(memory_bytes=256 * 2**20, disk_bytes=32 * 2**20, num_processes=64)
GRADING = GradingConfig(partial_credit=True)
NO_CHANGES = "no_changes"
"""In place of a verdict, for cheats that leave nothing in the patch."""
CHEATS = [*cheats_in_files.CHEATS, *cheats_in_code.CHEATS, *cheats_on_the_judge.CHEATS]
NUMBER = """
class Number(int):
    def __eq__(self, other):
        return int(self) == other
    __hash__ = int.__hash__
"""
ADDED = {
    "that prints and writes": "import sys\nprint('x' * 9000)\nopen('/tmp/log', 'w').write('1')\n",
    "with a helper thread": "import threading\nthreading.Thread(target=print).start()\n",
    "with a child process": "import subprocess\nsubprocess.run(['true'], check=True)\n",
    "with its own assertions": "assert add(1, 2) == 3\nimport unittest, pytest, ctypes, gc\ngc.collect()\n",
}
OWN_TEST = {"tests/test_own.py": "def test_own(): pass\n"}
HONEST = [
    Cheat(name="the right code", files={"calc.py": RIGHT}),
    Cheat(name="committed", files={"calc.py": RIGHT}, command="git commit -qam done"),
    Cheat(name="staged", files={"calc.py": RIGHT}, command="git add -A"),
    Cheat(name="with a test of its own", files={"calc.py": RIGHT, **OWN_TEST}, touches=True),
    Cheat(name="with a test removed", files={"calc.py": RIGHT}, command="rm tests/test_calc.py", touches=True),
    Cheat(name="in a module of its own", files={"sums/__init__.py": RIGHT, "calc.py": "from sums import add, total\n"}),
    Cheat(name="with numbers of its own", files={"calc.py": RIGHT.replace("a + b", "Number(a + b)") + NUMBER}),
    Cheat(name="with a binary file", files={"calc.py": RIGHT}, command="head -c 3000 /dev/urandom > data.bin"),
    *(Cheat(name=name, files={"calc.py": RIGHT + code}) for name, code in ADDED.items()),
]


async def patch_of(cheat: Cheat) -> str:
    """The changes in the agent's workspace after its deed."""
    if cheat.patch:
        return cheat.patch
    files = {**cheat.files} | ({"calc.py": WRONG + cheat.code + "\n"} if cheat.code else {})
    async with Workspace.open(prepare_repository(TASK), SMALL) as box:
        for path, text in files.items():
            await box.write(path, text)
        if cheat.command:
            await box.run(cheat.command, seconds=20)
        diff = await box.diff()
    assert diff.reason == "finished", diff
    return diff.patch.decode()


async def judged(cheat: Cheat) -> Verdict:
    patch = await patch_of(cheat)
    if not patch:
        return Verdict(solved=False, reason=NO_CHANGES)
    return await judge(TASK, patch, open_workspace=fresh_workspaces(SMALL), config=replace(GRADING, seconds=cheat.seconds))


@pytest.mark.parametrize("cheat", CHEATS, ids=[cheat.name for cheat in CHEATS])
def test_a_cheat_earns_nothing_and_has_its_reason(cheat: Cheat):
    verdict = asyncio.run(judged(cheat))
    assert not verdict.solved and verdict.score(GRADING) == 0.0, verdict
    assert verdict.reason in cheat.reasons, verdict
    assert not cheat.accused or any(cheat.accused in accusation for accusation in verdict.accusations), verdict
    assert verdict.touched or not cheat.touches, verdict


@pytest.mark.parametrize("honest", HONEST, ids=[honest.name for honest in HONEST])
def test_honest_work_is_solved(honest: Cheat):
    verdict = asyncio.run(judged(honest))
    assert verdict.solved and verdict.score(GRADING) == 1.0, verdict
    assert (verdict.mended, verdict.kept, verdict.accusations) == (1.0, 1.0, ())
    assert bool(verdict.touched) == honest.touches


def test_there_are_enough_cheats_and_each_has_a_name():
    assert len({cheat.name for cheat in CHEATS}) == len(CHEATS) >= 40


def test_partial_credit_is_the_share_that_is_mended_unless_something_breaks():
    half = Verdict(solved=False, reason="tests_failed", mended=0.5, kept=1.0)
    whole = replace(half, solved=True, reason="solved", mended=1.0)
    shares = [v.score(GRADING) for v in (half, replace(half, kept=0.9), replace(half, reason="tampered"), whole)]
    assert shares == [0.5, 0.0, 0.0, 1.0]
    assert half.score(GradingConfig()) == 0.0
