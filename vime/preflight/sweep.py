"""A sweep: one run for every combination of the listed values, each with its own run folder.

The runs come one after another in one process, where each takes over Ray, servers and trainer of the last (`vime.warm`). By a
launcher they run side by side in separate processes (`vime.preflight.launchers`). A run that fails, or that cannot even be
configured, does not end the sweep; the table at the end shows them all.
"""

import itertools
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.table import Table

from vime.errors import ConfigError, Problem
from vime.evaluation.conditions import AT, shown_rows
from vime.files.command_line import setting
from vime.preflight.compose import register_schemas
from vime.preflight.launchers import BASIC, LAUNCHER, ONE_RUN, refused, run_side_by_side, without_launcher
from vime.preflight.search_path import CONF, KEY, with_search_path
from vime.report.summary import read_summary
from vime.report.tables import measured_rows, spread_text
from vime.warm.hosted_run import OwnHost

PIPE_WIDTH = 10_000
"""Columns, more than any terminal has, so that lines are not broken."""
SWEEP_NAME = "sweep_%Y-%m-%d_%H-%M-%S"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    """The runs of a sweep. Example: `Sweep(points=[["seed=0"], ["seed=1"]], folder=Path("outputs/run_tiny/sweep_…"), tree=…)`."""

    points: list[list[str]]
    """The words of every run."""
    folder: Path
    tree: DictConfig | None
    """The configuration that all points share; None if it cannot be composed, which every point then reports."""

    @property
    def launcher(self) -> str:
        """The name of the chosen launcher."""
        return str(self.tree.hydra.runtime.choices[LAUNCHER]) if self.tree is not None else BASIC


def run_sweep(overrides: list[str]) -> int:
    """Runs all points; returns the first exit code that is not 0.

    Raises `ConfigError` if the words cannot be read at all, or if vime does not know their launcher or sweeper.
    """
    sweep = expand(overrides)
    group = setting("logger.group", sweep.folder.name)  # before the point's words, of which one may choose another
    commands = [
        [group, *without_launcher(point), setting("output_dir", str(sweep.folder / str(n)))]
        for n, point in enumerate(sweep.points)
    ]
    if sweep.tree is not None and sweep.launcher != BASIC:
        sys.stderr.write(f"{len(commands)} runs by {sweep.launcher} in {sweep.folder}\n")
        codes = run_side_by_side(commands, tree=sweep.tree, folder=sweep.folder)
    else:
        codes = []
        with closing(OwnHost()) as host:
            for number, command in enumerate(commands):
                sys.stderr.write(f"\n[{number + 1}/{len(commands)}] {' '.join(sweep.points[number])}\n")
                codes.append(host.run([*ONE_RUN, *command]))
    show(sweep.points, codes, sweep.folder)
    return next((code for code in codes if code), 0)


def expand(overrides: list[str]) -> Sweep:
    """The words of every point, the folder of the sweep, and what all points share."""
    words = with_search_path(overrides)
    register_schemas()
    try:
        parsed = OverridesParser.create().parse_overrides(words)
    except HydraException as error:
        raise ConfigError([Problem(key="--multirun", value=" ".join(overrides), remedy=str(error).splitlines()[0])]) from error
    if intervals := [override for override in parsed if override.is_interval_sweep()]:
        remedy = "an interval has no list of values to run: write them, for example trainer.lr=1e-4,3e-4"
        found = {override.key_or_group: (override.input_line or "").partition("=")[2] for override in intervals}
        raise ConfigError([Problem(key=key, value=value, remedy=remedy) for key, value in found.items()])
    tree = _compose_or_none([override.input_line or "" for override in parsed if not override.is_sweep_override()])
    choices = {override.key_or_group: override.value() for override in parsed} if tree is None else tree.hydra.runtime.choices
    if problems := refused(choices):
        raise ConfigError(problems)
    listed = dict(tree.hydra.sweeper.params or {}) if tree is not None else {}
    given = {override.key_or_group for override in parsed}
    words = [*overrides, *(f"{key}={values}" for key, values in listed.items() if key not in given)]
    final = OverridesParser.create().parse_overrides(_without_globs(words))
    lists = {override.get_key_element(): _words_of(override) for override in final}
    points = [list(point) for point in itertools.product(*lists.values())]
    chosen = next((override.value() for override in parsed if override.key_or_group == "output_dir"), None)
    folder = chosen or (str(tree.hydra.sweep.dir) if tree is not None else f"outputs/{time.strftime(SWEEP_NAME)}")
    own = ("hydra.mode=", "output_dir=")
    points = [[word for word in point if not word.startswith(own)] for point in points]
    return Sweep(points=points, folder=Path(str(folder)).absolute(), tree=tree)


def _words_of(override: Override) -> list[str]:
    """The words that a word with several values stands for; itself if it has one."""
    key = override.get_key_element()
    values = override.sweep_string_iterator() if override.is_sweep_override() else [override.get_value_element_as_str()]
    return [f"{key}={value}" for value in values]


def _without_globs(words: list[str]) -> list[str]:
    """The words with the options that they match in place of patterns: `algorithm=glob(g*)` is `algorithm=grpo,gspo`.

    Raises `ConfigError` for a pattern that matches no option.
    """
    parsed = OverridesParser.create().parse_overrides(words)
    patterns = {word: found for word, found in zip(words, parsed) if isinstance(found.value(), Glob)}
    if not patterns:
        return words
    GlobalHydra.instance().clear()
    search_path = [word for word in with_search_path(words) if word.startswith(f"{KEY}=")]
    values, problems = {}, []
    with initialize_config_dir(str(CONF), version_base="1.3", job_name="vime"):
        loader = GlobalHydra.instance().config_loader()
        for word, override in patterns.items():
            options = loader.get_group_options(override.key_or_group, overrides=search_path)
            matches = cast(Glob, override.value()).filter(options)
            values[word] = f"{override.get_key_element()}={','.join(matches)}"
            if not matches:
                remedy = (
                    f"matches none of its options: {', '.join(options)}" if options else "is no group of options: list values"
                )
                problems.append(Problem(key=override.key_or_group, value=word.partition("=")[2], remedy=remedy))
    if problems:
        raise ConfigError(problems)
    return [values.get(word, word) for word in words]


def scores_of(run: Path) -> dict[str, str]:
    """The score of the last row for each data set of a finished run; this is the trained agent's row if there is one."""
    summary = read_summary(run)
    if summary is None:
        return {}
    rows = shown_rows(summary["mode"], measured_rows(summary["datasets"].values()))
    found = {}
    for name, scores in summary["datasets"].items():
        last = next((row for row in reversed([row for row in rows if AT not in row]) if row in scores), None)
        if last is not None:
            found[name] = f"{spread_text(scores[last], num_runs=scores[last]['num_runs'])} ({rows[last]})"
    return found


def _compose_or_none(words: list[str]) -> DictConfig | None:
    """Composes the words that all points share; returns None if they are wrong, which every point then reports."""
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(CONF), version_base="1.3", job_name="vime"):
            tree = compose("config", overrides=words, return_hydra_config=True)
            HydraConfig.instance().set_config(tree)
            return tree
    except (HydraException, OmegaConfBaseException):
        return None


def show(points: list[list[str]], codes: list[int], folder: Path) -> None:
    """The table of all points: their words, how they ended, and the scores of the last row of each data set."""
    shared = set.intersection(*(set(point) for point in points)) if len(points) > 1 else set()
    scores = [scores_of(folder / str(number)) for number in range(len(points))]
    datasets = list(dict.fromkeys(name for found in scores for name in found))
    table = Table("run", "values", "result", *datasets)
    for number, (point, code) in enumerate(zip(points, codes)):
        result = {0: "done", 1: "failed", 2: "not started: see its output"}.get(code, f"ended with {code}")
        words = " ".join(word for word in point if word not in shared)
        table.add_row(str(number), words, result, *(scores[number].get(name, "-") for name in datasets))
    console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)
    console.print(str(folder), soft_wrap=True)  # a title would be broken to the width of the table
    console.print(table)
