"""The tasks of a folder as rows, and as problems of a configuration where they are refused."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentic.harbor.dockerfile import FILE
from agentic.harbor.packages import installed
from agentic.harbor.task import CONFIG, SCRIPT, TASK, HarborTask, RefusedError
from vime.errors import ConfigError, Problem

logger = logging.getLogger(__name__)

NUM_REASONS = 3
"""Most reasons that a problem gives for one task; `agentic.harbor.check` gives all."""


def rows(
    num_items: int,
    seed: int,
    *,
    folder: str,
    skip_refused: bool = False,
    cache_folder: str | None = None,
    host_variables: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Rows of all tasks in a folder, for `data.*.generator`; the tasks' packages are installed.

    Raises ConfigError for a folder without tasks, and for tasks that are refused unless `skip_refused` leaves them out.
    """
    tasks, refused = read_tasks(folder, installs=True, cache_folder=cache_folder, host_variables=host_variables)
    if found := folder_problems("folder", folder, tasks, refused, skip_refused=skip_refused):
        raise ConfigError(found)
    say_left_out(folder, tasks, refused)
    return [{"question": task.instruction, TASK: str(task.folder)} for task in tasks][:num_items]


def say_left_out(folder: str, tasks: list[HarborTask], refused: list[RefusedError]) -> None:
    """Warns of tasks that are refused and left out, with their number."""
    if refused:
        logger.warning("%d of %d tasks in %s are refused and left out", len(refused), len(tasks) + len(refused), folder)


def folders_of(folder: str | Path) -> list[Path]:
    """All task folders in a folder, which may be one itself, in the order of their paths."""
    return sorted(path.parent for path in Path(folder).expanduser().rglob(CONFIG))


def read_tasks(
    folder: str | Path, *, installs: bool, cache_folder: str | None, host_variables: Sequence[str] = ()
) -> tuple[list[HarborTask], list[RefusedError]]:
    """The tasks of a folder that can be carried out, and those that are refused; with `installs` for their packages as well."""
    tasks, refused = list[HarborTask](), list[RefusedError]()
    for path in folders_of(folder):
        try:
            task = HarborTask.read(path, host_variables=host_variables)
            for wanted, file in ((task.image.python, FILE), (task.tests.python, SCRIPT)) if installs else ():
                installed(task, wanted, file=file, cache_folder=cache_folder)
            tasks.append(task)
        except RefusedError as error:
            refused.append(error)
    return tasks, refused


def folder_problems(
    key: str, folder: str, tasks: list[HarborTask], refused: list[RefusedError], *, skip_refused: bool
) -> list[Problem]:
    """The problems of a folder of tasks: none of them can be carried out, or one problem for each that is refused."""
    if not tasks and not refused:
        remedy = f"no folder below it has a {CONFIG}: use a folder of Harbor's tasks"
        return [Problem(key=key, value=folder, remedy=remedy)]
    if not skip_refused:
        remedy = "{}: change or remove the task, or leave out all such tasks with method.skip_refused=true"
        return [Problem(key=key, value=str(error.folder), remedy=remedy.format(_reasons(error))) for error in refused]
    remedy = f"all {len(refused)} tasks are refused, the first because of {_reasons(refused[0])}" if refused else ""
    return [] if tasks else [Problem(key=key, value=folder, remedy=remedy)]


def _reasons(error: RefusedError) -> str:
    shown, more = "; ".join(map(str, error.refusals[:NUM_REASONS])), len(error.refusals) - NUM_REASONS
    return f"{shown}; and {more} more" if more > 0 else shown
