"""The reason why workspaces cannot run here, found by trying one."""

import asyncio
import shutil
import sys
import tempfile
import threading
from functools import lru_cache

from vime.agent.system_calls import machine_is_known
from vime.agent.workspace.box import Workspace
from vime.agent.workspace.prepare import prepare
from vime.config import WorkspaceConfig
from vime.errors import SandboxError

_NUM_PROCESSES = 8
_PLACES = 4096
"""Number of places, so large that a trial does not wait for workspaces that are at work."""
_TRIAL = """
import os, time
try:
    for count in range(50):
        if os.fork() == 0:
            time.sleep(10)
except OSError:
    print("refused")
"""


@lru_cache(maxsize=1)
def workspace_problem() -> str | None:
    """The reason why no workspace can run here, with the remedy, or None if one can; it is tried once per process."""
    if sys.platform != "linux" or not machine_is_known():
        return "workspaces need Linux on x86_64 or aarch64: run this there"
    packages = {"bwrap": "bubblewrap", "git": "git", "bash": "bash", "patch": "patch"}
    missing = [package for program, package in packages.items() if shutil.which(program) is None]
    if missing:
        return f"{', '.join(missing)}: missing, install it (apt-get install {' '.join(missing)})"
    found: list[str | None] = []
    thread = threading.Thread(target=lambda: found.append(asyncio.run(_tried())))  # an event loop may run in this one
    thread.start()
    thread.join()
    return found[0]


async def _tried() -> str | None:
    config = WorkspaceConfig(num_processes=_NUM_PROCESSES, packages=[], num_workspaces=_PLACES, num_commands=_PLACES)
    try:
        with tempfile.TemporaryDirectory() as cache:
            async with Workspace.open(prepare({"trial.py": _TRIAL}, cache_folder=cache), config) as box:
                end = await box.run("python trial.py")
                changes = await box.diff()
    except SandboxError as error:
        return f"a workspace cannot be started ({error}): allow user namespaces (in a container: run it privileged)"
    if end.stdout != "refused\n":
        return f"a trial workspace does not hold its limit of {_NUM_PROCESSES} processes ({end}): use Linux 5.14 or later"
    if (changes.patch, changes.reason) != (b"", "finished"):
        return f"git does not work in a trial workspace ({changes}): install git 2.30 or later"
    return None
