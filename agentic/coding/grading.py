"""The grading of patches: the settings, and a fresh workspace with the trusted program in it."""

import asyncio
import importlib.util
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from agentic.coding.repository import prepare_repository
from agentic.coding.task import Task
from vime.agent.bubblewrap import PACKAGES
from vime.agent.workspace import Workspace, WorkspaceLike
from vime.config import RunConfig, WorkspaceConfig
from vime.config.ranges import Positive
from vime.errors import Problem, SandboxError

JUDGE_PACKAGES = ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "exceptiongroup", "tomli")
"""Packages that the trusted program imports; the last two only before Python 3.11."""
JUDGE_MODULES = ("py", "typing_extensions")
"""Modules of one file that these import."""
OTHER_SECONDS = 15.0
"""Seconds that a verdict takes beside the tests, with a place on a busy node."""
_HERE = Path(__file__).parent
OpenWorkspace = Callable[[Task], AbstractAsyncContextManager[WorkspaceLike]]


@dataclass(kw_only=True, slots=True)
class GradingConfig:
    """Settings for the grading of an agent's patch."""

    seconds: Positive = 40.0
    """Wall-clock limit of the hidden tests of one task."""
    partial_credit: bool = False
    """True if a patch that breaks no test is rewarded by the share of tests that it mends; otherwise only a solved task is."""

    def problems(self, config: RunConfig) -> list[Problem]:
        """A method's check that slow tests are the agent's fault and not a reward that took too long."""
        needed = self.seconds + OTHER_SECONDS
        if config.rollout.reward_timeout_seconds >= needed:
            return []
        why = f"the hidden tests of a task may take method.grading.seconds={self.seconds:g}"
        remedy = f"{why}: use {needed:g} or more, or make these fewer"
        return [Problem(key="rollout.reward_timeout_seconds", value=config.rollout.reward_timeout_seconds, remedy=remedy)]


def judge_binds() -> dict[str, str]:
    """The trusted program's files on the host, with their places in a workspace."""
    place = f"{PACKAGES}/agentic/coding"
    specs = [spec for name in JUDGE_MODULES if (spec := importlib.util.find_spec(name)) is not None and spec.origin]
    modules = {str(spec.origin): f"{PACKAGES}/{spec.name}.py" for spec in specs if not spec.submodule_search_locations}
    return {str(_HERE / name): f"{place}/{name}" for name in ("runner", "protected.py")} | modules


def fresh_workspaces(config: WorkspaceConfig) -> OpenWorkspace:
    """Opens workspaces for grading, outside a run as well. They are fresh and contain the trusted program."""
    config = replace(config, packages=list(dict.fromkeys([*config.packages, *JUDGE_PACKAGES])))

    @asynccontextmanager
    async def opened(task: Task) -> AsyncIterator[WorkspaceLike]:
        prepared = await asyncio.to_thread(prepare_repository, task, cache_folder=config.cache_folder)
        async with Workspace.open(prepared, config, binds=judge_binds()) as box:
            yield box
            if box.lost:  # what it said last is no verdict
                raise SandboxError(box.lost)

    return opened
