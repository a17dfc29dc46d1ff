"""A small repository, and the proof that a test leaves nothing behind."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from vime.agent.workspace import Prepared, prepare, workspace_problem
from vime.agent.workspace.control_group import parents

FILES = {
    "add.py": "def add(a, b):\n    return a - b\n",
    "docs/read.txt": "text\n",
    ".gitignore": "*.log\n",
    "other.txt": "1\n2\n3\n",
}


@pytest.fixture(scope="session", autouse=True)
def works() -> None:
    """Fails without workspaces, which these tests are about."""
    assert workspace_problem() is None, workspace_problem()


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """A small repository."""
    return prepare(FILES, cache_folder=tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True)
def nothing_is_left(works: None) -> Iterator[None]:
    """Every test leaves the host without a process, a mount or a control group that it made."""
    mounts = Path("/proc/self/mountinfo").read_text()
    before = sandboxes() | groups()
    yield
    for _ in range(200):
        left = (sandboxes() | groups()) - before
        if not left:
            break
        time.sleep(0.05)
    assert not left
    assert Path("/proc/self/mountinfo").read_text() == mounts


def sandboxes() -> set[str]:
    """The processes below those that make workspaces for this one."""
    stages = [child for child in psutil.Process().children() if "NEWNS" in " ".join(child.cmdline())]
    return {str(process) for stage in stages for process in stage.children(recursive=True)}


def groups(owner: int | None = None) -> set[str]:
    """The control groups of one owner's workspaces, by default of this process's."""
    name = f"vime-workspace-{owner or os.getpid()}-*"
    return {str(path) for folder in (parents().memory, parents().pids) if folder for path in folder.glob(name)}
