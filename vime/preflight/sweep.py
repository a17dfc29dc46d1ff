"""A sweep: every combination of the listed values, one run after another, each a process with a run folder of its own.

A run that fails, or that cannot even be configured, does not end the sweep; the table at the end shows them all.
"""

import subprocess
import sys
import time
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.table import Table

from vime.errors import ConfigError, Problem
from vime.preflight.compose import CONF, register_schemas

STOP_SECONDS = 90.0
SWEEP_NAME = "sweep_%Y-%m-%d_%H-%M-%S"
ONE_RUN = ("hydra.mode=RUN", "hydra.sweeper.params=null")
"""Words that make a point a single run, whatever its recipe asks for; without them it would start the sweep again."""


def run_sweep(overrides: list[str]) -> int:
    """Runs all points; returns the first exit code that is not 0.

    Raises `ConfigError` if the words cannot be read at all.
    """
    points, folder = expand(overrides)
    codes = []
    for number, point in enumerate(points):
        sys.stderr.write(f"\n[{number + 1}/{len(points)}] {' '.join(point)}\n")
        codes.append(run_point([*point, f"output_dir={folder / str(number)}"]))
    show(points, codes, folder)
    return next((code for code in codes if code), 0)


def expand(overrides: list[str]) -> tuple[list[list[str]], Path]:
    """The words of every point, and the folder of the sweep."""
    register_schemas()
    try:
        parsed = OverridesParser.create().parse_overrides(overrides)
    except HydraException as error:
        raise ConfigError([Problem(key="--multirun", value=" ".join(overrides), remedy=str(error).splitlines()[0])]) from error
    fixed = [o.input_line or "" for o in parsed if not o.is_sweep_override()]
    tree = _compose_or_none(fixed)
    listed = dict(tree.hydra.sweeper.params or {}) if tree is not None else {}
    given = {override.key_or_group for override in parsed}
    words = [*overrides, *(f"{key}={values}" for key, values in listed.items() if key not in given)]
    batches = BasicSweeper.split_arguments(OverridesParser.create().parse_overrides(words), None)
    points = [list(point) for batch in batches for point in batch]
    chosen = next((override.value() for override in parsed if override.key_or_group == "output_dir"), None)
    folder = chosen or (str(tree.hydra.sweep.dir) if tree is not None else f"outputs/{time.strftime(SWEEP_NAME)}")
    own = ("hydra.mode=", "output_dir=")
    return [[word for word in point if not word.startswith(own)] for point in points], Path(str(folder)).absolute()


def _compose_or_none(words: list[str]) -> DictConfig | None:
    """The tree of what all points share, None if it is wrong: then every point says so itself."""
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(CONF), version_base="1.3", job_name="vime"):
            tree = compose("config", overrides=words, return_hydra_config=True)
            HydraConfig.instance().set_config(tree)
            return tree
    except (HydraException, OmegaConfBaseException):
        return None


def run_point(words: list[str]) -> int:
    """One run in a process of its own; an interruption is passed on, and waited for."""
    process = subprocess.Popen([sys.executable, "-m", "vime.run", *ONE_RUN, *words])
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


def show(points: list[list[str]], codes: list[int], folder: Path) -> None:
    """The table of all points: their words and how they ended."""
    shared = set.intersection(*(set(point) for point in points)) if len(points) > 1 else set()
    table = Table("run", "values", "result", title=str(folder), title_justify="left")
    for number, (point, code) in enumerate(zip(points, codes)):
        result = {0: "done", 1: "failed", 2: "not started: see above"}.get(code, f"ended with {code}")
        table.add_row(str(number), " ".join(word for word in point if word not in shared), result)
    Console().print(table)
