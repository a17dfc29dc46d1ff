"""Runs the points of a sweep side by side, by one of Hydra's launchers; each point is a separate process with its own run folder.

The launcher would compose a configuration for every job, and end the sweep where one is wrong. Here a job gets only Hydra's own
configuration, and each point composes and checks its words itself.
"""

import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.experimental.callback import Callback
from hydra.types import HydraContext
from omegaconf import DictConfig, open_dict, read_write

from vime.errors import ConfigError, Problem
from vime.files.command_line import setting
from vime.preflight.search_path import CONF
from vime.processes.launch import die_with_parent

STOP_SECONDS = 90.0
LAUNCHER, SWEEPER, BASIC = "hydra/launcher", "hydra/sweeper", "basic"
PACKAGES = {"joblib": "hydra-joblib-launcher", "submitit_local": "hydra-submitit-launcher"}
"""Launchers besides the basic one, and the packages that bring them."""
ONE_RUN = ("hydra.mode=RUN", "hydra.sweeper.params=null")
"""Words that make a point a single run, even if its recipe is a sweep; without them it would start the sweep again."""


def refused(choices: Mapping[Any, Any]) -> list[Problem]:
    """Problems of the chosen launcher and sweeper: vime does not support it, or it is not installed."""
    problems = []
    if (sweeper := choices.get(SWEEPER, BASIC)) != BASIC:
        remedy = "is not supported: remove it; --multirun runs every combination of the comma-separated values"
        problems.append(Problem(key=SWEEPER, value=sweeper, remedy=remedy))
    launcher = choices.get(LAUNCHER, BASIC)
    if launcher != BASIC and launcher not in PACKAGES:
        remedy = f"is not supported; available: {', '.join((BASIC, *PACKAGES))}. On Slurm, start each run with scripts/slurm.sh"
        problems.append(Problem(key=LAUNCHER, value=launcher, remedy=remedy))
    elif launcher != BASIC and not _is_installed(PACKAGES[launcher]):
        problems.append(Problem(key=LAUNCHER, value=launcher, remedy=f"is not installed: run pip install {PACKAGES[launcher]}"))
    return problems


def check_launcher(choices: Mapping[Any, Any], *, is_sweep: bool) -> None:
    """Raises `ConfigError` for a launcher without a sweep, which it would run."""
    launcher = choices.get(LAUNCHER, BASIC)
    if launcher != BASIC and not is_sweep:
        remedy = "runs the points of a sweep, and this is one run: add --multirun, or leave it out"
        raise ConfigError([Problem(key=LAUNCHER, value=launcher, remedy=remedy)])


def without_launcher(words: list[str]) -> list[str]:
    """The words of a point without those that chose and set its launcher."""
    return [word for word in words if not word.startswith((f"{LAUNCHER}=", f"{SWEEPER}=", "hydra.launcher."))]


def _is_installed(package: str) -> bool:
    return find_spec("hydra_plugins") is not None and find_spec(f"hydra_plugins.{package.replace('-', '_')}") is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Points:
    """The task of a launcher's job: runs the point whose number the launcher gives it. Returns the run's exit code."""

    commands: list[list[str]]

    def __call__(self, config: DictConfig) -> int:
        return run_point(self.commands[HydraConfig.get().job.num])


def run_point(words: list[str]) -> int:
    """Runs one point of a sweep in a separate process, with the words of its command line; returns the exit code.

    On Ctrl-C the process is terminated and waited for, `STOP_SECONDS` at most, and KeyboardInterrupt is raised again. It is in a
    session of its own, where the terminal does not interrupt it as well, since a second interrupt would abort its shutdown."""
    command = [sys.executable, "-m", "vime.run", *ONE_RUN, *words]
    process = subprocess.Popen(command, start_new_session=True, preexec_fn=partial(die_with_parent, signal.SIGTERM))
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise


def run_side_by_side(commands: list[list[str]], *, tree: DictConfig, folder: Path) -> list[int]:
    """Runs every point by the launcher of a composed tree; returns their exit codes."""
    place = ("hydra.sweep.subdir=.", setting("hydra.sweep.dir", str(folder)))
    with read_write(tree.hydra), open_dict(tree.hydra):
        tree.hydra.job.config_name = None
        tree.hydra.overrides.hydra = ["hydra.output_subdir=null", "hydra/job_logging=none", *place]
        tree.hydra.sweep.dir = str(folder)
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONF), version_base="1.3", job_name="vime"):
        loader = GlobalHydra.instance().config_loader()
    silent: Any = Callback()  # takes what a launcher announces, as Hydra's list of callbacks does
    launcher = Plugins.instance().instantiate_launcher(
        hydra_context=HydraContext(config_loader=loader, callbacks=silent),
        task_function=Points(commands=commands),
        config=tree,
    )
    try:
        return [job.return_value for job in launcher.launch([[] for _ in commands], initial_job_idx=0)]
    except KeyboardInterrupt:
        _stop_points()
        raise


def _stop_points() -> None:
    """Ends the points that a launcher left running, and waits for them."""
    points = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it ended meanwhile
            if "vime.run" in process.cmdline():
                process.terminate()
                points.append(process)
    psutil.wait_procs(points, timeout=STOP_SECONDS)
