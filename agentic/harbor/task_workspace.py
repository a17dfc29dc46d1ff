"""A task in a workspace: its files at their places, the run of its tests or of its solution, and the reward that they wrote."""

import asyncio
import json
import math
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentic.harbor.dockerfile import FILE, Copied
from agentic.harbor.packages import installed, installers
from agentic.harbor.shell_commands import Refusal
from agentic.harbor.task import SCRIPT, HarborTask, RefusedError
from vime.agent.bubblewrap import PACKAGES
from vime.agent.workspace import CommandResult, Prepared, Workspace, prepare
from vime.agent.workspace.view import environment_of
from vime.config import WorkspaceConfig
from vime.errors import SandboxError

TESTS, LOGS, SOLUTION = "/tests", "/logs", "/solution"
VERIFIER = f"{LOGS}/verifier"
REWARD_JSON, REWARD_TEXT = f"{VERIFIER}/reward.json", f"{VERIFIER}/reward.txt"
_NOT_PREPARED = f"{VERIFIER}/not_prepared.txt"
"""Written by the stand-ins of installers (`installers.py`)."""
REWARD = "reward"
"""The name of the score among a task's rewards."""
IMAGE_PACKAGES, TEST_PACKAGES, TOOLS = "/run/image_packages", "/run/test_packages", "/run/installers"
MOST_REWARD_BYTES = 2**20
SAID_CHARACTERS = 2000
_GLOB = re.compile(r"[\w./*?\[\]-]+")
_CLEAR = f"""\
chmod -R u+rwX {TESTS} {VERIFIER} 2> /dev/null
find {TESTS} -mindepth 1 -delete && rm -rf {VERIFIER} && mkdir -p {VERIFIER}
"""
"""Removes whatever an agent has put where the tests and their reward will be."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Graded:
    """The result of a task's tests.

    Example: `Graded(rewards={"reward": 1.0}, reason="finished", seconds=2.1, output="1 passed")`.
    """

    rewards: dict[str, float]
    """By name, as the tests wrote them; empty if they were ended at a limit."""
    reason: str
    """The reason of the script's end (`CommandResult.reason`)."""
    seconds: float
    output: str
    """The end of what it printed."""
    not_prepared: str = ""
    """Installations that failed because they were not prepared, a line each; the score may then say nothing about the agent."""

    @property
    def score(self) -> float:
        """The reward of this name, or the only one; 0 for tests that were ended at a limit. Raises SandboxError for others."""
        if self.reason != "finished":
            return 0.0
        found = self.rewards.get(REWARD, next(iter(self.rewards.values())) if len(self.rewards) == 1 else None)
        if found is None:
            raise SandboxError(
                f"the tests wrote the rewards {', '.join(self.rewards) or 'of an empty table'}, and none is named {REWARD}"
            )
        return float(found)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ready:
    """A task's files and packages on this machine, from which its workspaces are opened."""

    task: HarborTask
    tree: Prepared
    image_packages: Path | None
    test_packages: Path | None
    tools: Path

    @property
    def binds(self) -> dict[str, str]:
        """Folders of this machine that a workspace shows besides its system."""
        found = {self.image_packages: IMAGE_PACKAGES, self.test_packages: TEST_PACKAGES, self.tools: TOOLS}
        if self.image_packages == self.test_packages:
            found = {self.image_packages: IMAGE_PACKAGES, self.tools: TOOLS}
        return {str(path): place for path, place in found.items() if path is not None}

    @property
    def places(self) -> dict[str, str]:
        """The task's folders, and those of Harbor, in the tree."""
        return {place: place.lstrip("/") for place in sorted(self.task.image.places | {TESTS, LOGS, SOLUTION})}

    def environment(self, config: WorkspaceConfig) -> dict[str, str]:
        """The variables of the agent's commands."""
        usual = environment_of(config)
        found = {name: value.replace("$PATH", usual["PATH"]) for name, value in self.task.environment.items()}
        python = [IMAGE_PACKAGES] if self.image_packages else []
        return found | {
            "PATH": _joined(*(f"{folder}/bin" for folder in python), found.get("PATH", usual["PATH"])),
            "PYTHONPATH": _joined(found.get("PYTHONPATH", ""), *python, PACKAGES if config.packages else ""),
        }

    def tests_environment(self, config: WorkspaceConfig) -> dict[str, str]:
        """The variables of the tests: their packages and the stand-ins of installers come before what the agent has."""
        own = self.environment(config)
        place = IMAGE_PACKAGES if self.test_packages == self.image_packages else TEST_PACKAGES
        python = [place] if self.test_packages else []
        names = [package.name for package in (*self.task.tests.python, *self.task.image.python)]
        return {
            "PREPARED_PACKAGES": "\n".join(names),
            "PREPARED_SYSTEM_PACKAGES": "\n".join(["curl", *(package.name for package in self.task.tests.system)]),
            "PYTHONNOUSERSITE": "1",
            **self.task.tests_environment,
            "PATH": _joined(TOOLS, *(f"{folder}/bin" for folder in python), own["PATH"]),
            "PYTHONPATH": _joined(f"{TOOLS}/modules", *python, own["PYTHONPATH"]),
        }


def make_ready(task: HarborTask, *, cache_folder: str | None) -> Ready:
    """Installs a task's packages and lays out its files, or finds both in the cache; it blocks.

    Raises RefusedError for packages that cannot be installed, and for a file that would lie outside of the task's tree.
    """
    with tempfile.TemporaryDirectory() as folder:
        for copied in task.image.copies:
            _copy(task, copied, Path(folder).resolve())
        return Ready(
            task=task,
            image_packages=installed(task, task.image.python, file=FILE, cache_folder=cache_folder),
            test_packages=installed(task, task.tests.python, file=SCRIPT, cache_folder=cache_folder),
            tools=installers(cache_folder=cache_folder),
            tree=prepare(Path(folder), cache_folder=cache_folder, keep_git=any(Path(folder).rglob(".git"))),
        )


def _copy(task: HarborTask, copied: Copied, folder: Path) -> None:
    """Copies a file or folder to its place in `folder`; files replace files and links.

    Raises RefusedError for a place that a link puts outside of `folder`: the files may have changed since the plan read them.
    """
    for path, place in copied.entries():
        target, is_folder = folder / place.lstrip("/"), copied.is_folder(path)
        if not (target if is_folder else target.parent).resolve().is_relative_to(folder):
            reason = f"{place} would lie outside of the task's tree, behind a link"
            raise RefusedError(task.folder, [Refusal(file=FILE, line=copied.line, reason=reason)])
        (target if is_folder else target.parent).mkdir(parents=True, exist_ok=True)
        if is_folder:
            continue
        target.unlink(missing_ok=True)
        if path.is_symlink() and path != copied.source:
            target.symlink_to(os.readlink(path))
        else:
            shutil.copyfile(path, target)
            shutil.copymode(path, target)


OpensWorkspace = Callable[..., AbstractAsyncContextManager[Workspace]]
"""Opens a workspace as `vime.rollout.context.Context.workspace` does."""


@asynccontextmanager
async def opened(ready: Ready, config: WorkspaceConfig, workspace: OpensWorkspace) -> AsyncIterator[Workspace]:
    """A workspace in which the task's image has been built. Raises SandboxError if it cannot be."""
    task = ready.task
    own = ready.environment(config)
    async with workspace(ready.tree, binds=ready.binds, places=ready.places, folder=task.workdir, environment=own) as box:
        commands = [["mkdir", "-p", task.workdir, f"{LOGS}/agent", VERIFIER], *task.image.commands]
        script = " && ".join(" ".join(_quoted(word) for word in command) for command in commands)
        end = await box.run(script, folder="/")
        if not end.succeeded:
            raise SandboxError(f"{task.name}: {FILE} could not be followed: {end.text()[-SAID_CHARACTERS:]}")
        yield box


async def run_tests(box: Workspace, ready: Ready, config: WorkspaceConfig) -> Graded:
    """Runs the tests in the agent's workspace, as Harbor does, and reads their reward.

    Everything that the agent had put into /tests and /logs/verifier is removed before. Raises SandboxError if the script ends by
    itself without a reward that can be read.
    """
    task = ready.task
    end = await box.run(_CLEAR, folder="/")
    if not end.succeeded:
        raise SandboxError(f"{task.name}: {TESTS} and {VERIFIER} cannot be emptied: {end.text()[-SAID_CHARACTERS:]}")
    await _place(box, task.folder / "tests", TESTS)
    end = await _run(box, f"{TESTS}/test.sh", task.tests_seconds, ready.tests_environment(config))
    output = end.text()[-SAID_CHARACTERS:]
    if end.reason == "life_limit" or (end.reason == "time_limit" and end.seconds < task.tests_seconds):
        raise SandboxError(f"{task.name}: workspace.life_seconds={config.life_seconds:g} was over while the tests ran")
    if end.reason not in ("finished", "killed"):
        return Graded(rewards={}, reason=end.reason, seconds=end.seconds, output=output)
    rewards = await _rewards(box, f"{task.name}: the tests ended with exit code {end.exit_code}", output)
    try:
        asked = (await box.read(_NOT_PREPARED, most_bytes=MOST_REWARD_BYTES)).decode(errors="replace").strip()
    except (OSError, ValueError):
        asked = ""
    return Graded(rewards=rewards, reason="finished", seconds=end.seconds, output=output, not_prepared=asked[:SAID_CHARACTERS])


async def run_solution(box: Workspace, ready: Ready) -> CommandResult:
    """Runs the reference solution in the agent's place, within the agent's limit."""
    await _place(box, ready.task.folder / "solution", SOLUTION)
    variables = {"DEBIAN_FRONTEND": "noninteractive", **ready.task.solution_environment}
    return await _run(box, f"{SOLUTION}/solve.sh", ready.task.agent_limit, variables)


async def _run(box: Workspace, script: str, seconds: float, environment: Mapping[str, str]) -> CommandResult:
    return await box.run(["bash", script], seconds=seconds, environment=environment)


async def _place(box: Workspace, folder: Path, place: str) -> None:
    """Writes the files of a folder to a place inside, with their executable bits."""
    programs = ["chmod", "+x"]
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        target = f"{place}/{path.relative_to(folder).as_posix()}"
        await box.write(target, await asyncio.to_thread(path.read_bytes))
        if path.stat().st_mode & 0o100 or path.suffix == ".sh":
            programs.append(target)
    if len(programs) > 2:
        await box.run(programs, folder="/")


async def _rewards(box: Workspace, what: str, output: str) -> dict[str, float]:
    """The rewards by the rules of Harbor's verifier: reward.json before reward.txt, finite numbers alone."""
    for path in (REWARD_JSON, REWARD_TEXT):
        try:
            text = (await box.read(path, most_bytes=MOST_REWARD_BYTES)).decode(errors="replace")
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise SandboxError(f"{what}, and {path} cannot be read: {error}") from error
        try:
            found: Any = json.loads(text) if path == REWARD_JSON else {REWARD: float(text)}
            numbers = {str(name): _number(value) for name, value in found.items()}
        except (ValueError, TypeError, AttributeError) as error:
            raise SandboxError(f"{what}, and {path} holds no reward: {text[:100]!r} ({error})") from error
        return numbers
    raise SandboxError(f"{what} and wrote no reward to {REWARD_TEXT} or {REWARD_JSON}: {output}")


def _number(value: Any) -> float:
    if not isinstance(value, (int, float)):
        raise TypeError(f"{value!r} is no number")
    if not math.isfinite(value):
        raise ValueError(f"{value} is not finite")
    return float(value)


def _quoted(word: str) -> str:
    return word if _GLOB.fullmatch(word) else shlex.quote(word)


def _joined(*folders: str) -> str:
    return ":".join(folder for folder in folders if folder)
