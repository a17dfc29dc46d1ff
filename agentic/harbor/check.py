"""Checks tasks in Harbor's layout: which are refused, and whether the tests of the others tell a solution from nothing.

    python -m agentic.harbor.check tasks
    python -m agentic.harbor.check tasks --only hello --json checked.json

Each task is refused with its line, or its solution must score 1 and an untouched workspace less. Ends with 1 if one does neither.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import track

from agentic.harbor.rows import folders_of
from agentic.harbor.task import CONFIG, HarborTask, RefusedError
from agentic.harbor.task_workspace import OpensWorkspace, make_ready, opened, run_solution, run_tests
from vime.agent.workspace import Workspace
from vime.config import WorkspaceConfig
from vime.errors import SandboxError
from vime.surroundings import settle


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """One task. Example: `Checked(name="hello", refused=[], solution=1.0, untouched=0.0, why="")`."""

    name: str
    refused: list[str]
    solution: float | None = None
    """The score of the reference solution; None if there is none, or the tests gave no reward."""
    untouched: float | None = None
    why: str = ""
    """The output of tests that did not end as they should."""

    @property
    def is_right(self) -> bool:
        """True if the task is refused, or its tests tell its solution from nothing."""
        return bool(self.refused) or (self.solution == 1.0 and self.untouched is not None and self.untouched < 1.0)

    def __str__(self) -> str:
        if self.refused:
            return f"{self.name}: refused: {'; '.join(self.refused)}"
        said = "" if self.is_right else f": {self.why}"
        return f"{self.name}: {'right' if self.is_right else 'WRONG'}: solution {self.solution}, untouched {self.untouched}{said}"


async def check(folder: Path, *, name: str, config: WorkspaceConfig, host_variables: Sequence[str] = ()) -> Checked:
    """Checks one task, which may read some of this machine's variables."""
    try:
        task = await asyncio.to_thread(partial(HarborTask.read, host_variables=host_variables), folder)
        ready = await asyncio.to_thread(partial(make_ready, cache_folder=config.cache_folder), task)
    except RefusedError as error:
        return Checked(name=name, refused=list(map(str, error.refusals)))
    life = task.tests_seconds + (task.agent_seconds or config.life_seconds)
    config = replace(config, life_seconds=max(config.life_seconds, life))
    workspace: OpensWorkspace = partial(_open, config)
    scores, said = dict[bool, float](), list[str]()
    for solves in (False, True):
        if solves and not (folder / "solution/solve.sh").is_file():
            said.append("there is no solution/solve.sh")
            continue
        try:
            async with opened(ready, config, workspace) as box:
                if solves and not (end := await run_solution(box, ready)).succeeded:
                    said.append(f"the solution: {end.text()[-1000:]}")
                tested = await run_tests(box, ready, config)
                scores[solves] = tested.score
                if solves and tested.score != 1.0:
                    said += [tested.output, *([f"not prepared: {tested.not_prepared}"] if tested.not_prepared else [])]
        except SandboxError as error:
            said.append(str(error))
    return Checked(name=name, refused=[], solution=scores.get(True), untouched=scores.get(False), why="; ".join(said))


def _open(config: WorkspaceConfig, *arguments: object, **keywords: object) -> AbstractAsyncContextManager[Workspace]:
    return Workspace.open(*arguments, config, **keywords)  # pyright: ignore[reportArgumentType, reportCallIssue]


def main(arguments: list[str] | None = None) -> int:
    """Checks the folders of the command line."""
    settle()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "folders", nargs="+", type=Path, metavar="FOLDER", help=f"a folder; every one below it with {CONFIG} is a task"
    )
    parser.add_argument("--only", default="", metavar="WORD", help="tasks with this in their paths")
    parser.add_argument(
        "--host-variables", nargs="+", default=[], metavar="NAME", help="variables of this machine that tasks may read"
    )
    parser.add_argument("--json", type=Path, help="write all tasks here")
    given = parser.parse_args(arguments)
    paths = [(folder, path) for folder in given.folders for path in folders_of(folder) if given.only in str(path)]
    found = list[Checked]()
    for folder, path in track(paths, "tasks", console=Console(stderr=True), transient=True):
        name = str(path.relative_to(folder)) if path != folder else path.name
        checked = check(path, name=name, config=WorkspaceConfig(), host_variables=given.host_variables)
        found.append(asyncio.run(checked))
        sys.stdout.write(f"{found[-1]}\n")
    refused, right = sum(bool(task.refused) for task in found), sum(task.is_right for task in found)
    sys.stdout.write(f"{len(found)} tasks: {refused} refused, {right - refused} right, {len(found) - right} wrong\n")
    if given.json:
        given.json.write_text(json.dumps([asdict(task) for task in found], indent=1, ensure_ascii=False) + "\n")
    return int(right < len(found))


if __name__ == "__main__":
    sys.exit(main())
