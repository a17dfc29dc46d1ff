"""Makes a `RunConfig` from the command line: composes `conf/` with Hydra, reports every mistake, and leaves OmegaConf behind.

Nothing is written here: the run folder is only named (`outputs/<name>/<time>`, or with `resume=true` the newest there).
"""

import functools
import importlib
import json
import os
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from vime.cluster.accelerators import this_machine
from vime.config import Mode, Precision, RunConfig, ServedModelConfig
from vime.errors import ConfigError, Problem, describe
from vime.files.provenance import plain
from vime.preflight.launchers import check_launcher
from vime.preflight.overrides import Composition
from vime.preflight.search_path import CONF, METHODS, installed_methods, with_search_path
from vime.report.run_directory import read_config
from vime.report.summary import read_summary

ADAPTERS = "adapters"
"""The setting, and the folder of a run with the folders of its adapters."""
NAME = re.compile(r"[A-Za-z0-9_-]+")
"""Names of adapters, which are parts of file names and of the labels of tokens."""
REHEARSALS = "rehearsals"
"""Folder beside those of runs."""
PROCESSOR = Path("/proc/cpuinfo")
BFLOAT16_PRODUCTS = {"amx_bf16", "avx512_bf16"}
"""Processor capabilities, by Linux's names; any of them enables products of bfloat16."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Composed:
    """A configuration and the words it came from.

    Example: `Composed(config=RunConfig(…), overrides=["+method=memagent", "seed=1"])`.
    """

    config: RunConfig
    overrides: list[str] = field(default_factory=list)
    sweep: dict[str, str] = field(default_factory=dict)
    """Values that the configuration itself lists (`+sweep=…`), for one run each."""
    started: float = field(default_factory=lambda: psutil.Process().create_time())
    """The time when the program was started, in seconds since 1970."""


def register_schemas() -> None:
    """Makes the dataclasses known to Hydra: `RunConfig`, and the schema of every installed method (`vime.methods`).

    Raises `ConfigError` if a method cannot be imported.
    """
    _register_run()
    for entry_point in installed_methods():
        try:
            importlib.import_module(entry_point.module)
        except Exception as error:  # the boundary of a package that is not ours
            package = entry_point.dist.name if entry_point.dist is not None else entry_point.module
            remedy = f"this installed method cannot be imported ({describe(error)}): repair or uninstall the package {package}"
            raise ConfigError([Problem(key=METHODS, value=entry_point.value, remedy=remedy)]) from error
    OmegaConf.register_new_resolver("this_machine", this_machine, replace=True)
    OmegaConf.register_new_resolver("share", share, replace=True)
    OmegaConf.register_new_resolver("without", without, replace=True)
    OmegaConf.register_new_resolver("choose", choose, replace=True)
    OmegaConf.register_new_resolver("package_folder", package_folder, replace=True)
    OmegaConf.register_new_resolver("fast_precision", fast_precision, replace=True)


@functools.cache
def _register_run() -> None:
    """Makes the tree of `RunConfig` once a process, which takes as long as a fifth of a composition."""
    ConfigStore.instance().store(group="schema", name="run", node=RunConfig, package="_global_")


ConfigStore.__deepcopy__ = lambda store, memo: store  # pyright: ignore[reportAttributeAccessIssue]
"""Keeps Hydra from copying this singleton, with all schemas in it, six times per composition, a quarter of its time."""


def share(total: int, *sizes: int) -> int:
    """`total` divided by all sizes, at least 1: the rest for data parallelism or for replicas."""
    for size in sizes:
        total //= max(1, size)
    return max(1, total)


def without(total: int, part: int) -> int:
    """`total` less `part`: the GPUs of the trained model without those of frozen ones."""
    return total - part


def choose(number: int, some: Any, none: Any) -> Any:
    """One of two values, by whether a number is above 0."""
    return some if number > 0 else none


def fast_precision() -> str:
    """The number format in which this machine's processor multiplies faster: bfloat16 if it has products of it, or float32."""
    found = set(PROCESSOR.read_text().split()) if PROCESSOR.is_file() else set()
    return (Precision.bfloat16 if found & BFLOAT16_PRODUCTS else Precision.float32).value


def package_folder(package: str, folder: str) -> str:
    """Absolute path of a folder inside an installed package, for a program that is started in any folder.

    Raises `ModuleNotFoundError` if there is no such package.
    """
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"there is no package {package}")
    return str(Path(next(iter(spec.submodule_search_locations))) / folder)


def compose_run(overrides: list[str], *, check: Callable[[RunConfig], list[Problem]] | None = None) -> Composed:
    """Composes the configuration of one run, which with several adapters (`adapters`) has that of each.

    Raises `ConfigError` with every unknown key, wrong type and unknown choice among the overrides, and with the problems that
    `check` finds in the rest of them.
    """
    first = _compose(overrides, check=check)
    if not first.config.adapters:
        return first
    return _with_adapters(first, check)


def _with_adapters(composed: Composed, check: Callable[[RunConfig], list[Problem]] | None) -> Composed:
    """The configuration of a run with the composed configuration of each of its adapters.

    What all share (model, servers, machines) is the first's.
    """
    own = (ADAPTERS, "output_dir")
    words = [word for word in composed.overrides if not word.lstrip("+~").startswith(own)]
    folder, found, problems = Path(str(composed.config.output_dir)), dict[str, RunConfig](), list[Problem]()
    for name, own in composed.config.adapters.items():
        key = f"{ADAPTERS}.{name}"
        if not NAME.fullmatch(str(name)) or not isinstance(own, str):
            remedy = "an adapter has a name of letters, digits, '-' and '_', and the words of its run as a text, for example "
            remedy += '"+method=NAME trainer.lr=1e-3"'
            raise ConfigError([Problem(key=key, value=own, remedy=remedy)])
        try:
            place = f"output_dir={json.dumps(str(folder / ADAPTERS / name))}"
            config = _compose([*words, *shlex.split(own), place], check=check, is_adapter=True).config
        except ConfigError as error:
            problems += [replace(problem, key=f"{key}: {problem.key}") for problem in error.problems]
            continue
        config.adapters, config.name = {}, f"{composed.config.name}/{name}"
        found[str(name)] = config
    finished = [why_finished(Path(str(config.output_dir)), config) for config in found.values() if config.resume]
    if all(finished):
        problems += [Problem(key="resume", value=True, remedy=remedy) for remedy in finished[:1] if remedy is not None]
    if problems:
        raise ConfigError(problems)
    config = replace(next(iter(found.values())), adapters=found, name=composed.config.name, output_dir=str(folder))
    config.serving = replace(config.serving, models=_served(list(found.values())))
    problems = check(config) if check is not None else []
    if problems:
        raise ConfigError(problems)
    return replace(composed, config=config)


def _served(configs: list[RunConfig]) -> dict[str, ServedModelConfig]:
    """The models of all configurations by name; one that several share has room for the longest of their contexts."""
    served: dict[str, ServedModelConfig] = {}
    for config in configs:
        for name, model in config.serving.models.items():
            longest = max(model.max_model_len, served.get(name, model).max_model_len)
            served[name] = replace(model, max_model_len=longest)
    return served


def _compose(overrides: list[str], *, check: Callable[[RunConfig], list[Problem]] | None, is_adapter: bool = False) -> Composed:
    words = with_search_path(overrides)
    register_schemas()
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONF), version_base="1.3", job_name="vime"):
        composition = Composition(words)
        tree = composition.compose()
        if composition.problems:
            raise ConfigError([*composition.problems, *_further_problems(composition, tree, check)])
        HydraConfig.instance().set_config(tree)
        run_dir = Path(str(tree.hydra.run.dir))
        if tree.rehearse:  # it is no run to go on with, nor the newest of its name
            run_dir = run_dir.parents[1] / REHEARSALS / run_dir.parent.name / run_dir.name
        sweep = {str(key): str(value) for key, value in (tree.hydra.sweeper.params or {}).items()}
        check_launcher(tree.hydra.runtime.choices, is_sweep=bool(sweep))
        config = to_dataclass(tree)
    make_paths_absolute(config)
    config.output_dir = str(resolve_output_dir(config, run_dir, may_be_finished=is_adapter))
    problems = check(config) if check is not None and not config.adapters else []
    if problems:
        raise ConfigError(problems)
    return Composed(config=config, overrides=list(overrides), sweep=sweep)


def _further_problems(
    composition: Composition, tree: DictConfig, check: Callable[[RunConfig], list[Problem]] | None
) -> list[Problem]:
    """The problems that `check` finds in a tree without its wrong words; none if a wrong word chose an option of a group."""
    if check is None or composition.has_wrong_choice:
        return []
    try:
        config = to_dataclass(tree)
    except ConfigError:
        return []
    if config.adapters:  # each is checked by itself
        return []
    make_paths_absolute(config)
    wrong = {problem.key for problem in composition.problems}
    return [problem for problem in check(config) if problem.key not in wrong]


def to_dataclass(tree: DictConfig) -> RunConfig:
    """Plain dataclasses with everything resolved, without Hydra's own node.

    Raises `ConfigError` if a value does not fit its field.
    """
    with open_dict(tree):
        del tree["hydra"]
    try:
        config: Any = OmegaConf.to_object(tree)
    except (OmegaConfBaseException, TypeError, AttributeError) as error:
        key = str(getattr(error, "full_key", None) or "")
        value = "" if key else "the configuration"
        raise ConfigError([Problem(key=key, value=value, remedy=str(error).splitlines()[0])]) from error
    assert isinstance(config, RunConfig), type(config)
    return config


def make_paths_absolute(config: RunConfig) -> None:
    """Makes the paths of local files and folders absolute, because workers may run elsewhere; Hub ids stay as they are."""
    config.model.checkpoint = _absolute(config.model.checkpoint)
    for model in config.serving.models.values():
        model.checkpoint = _absolute(model.checkpoint) if model.checkpoint else None
    retrieval = config.retrieval
    retrieval.corpus = _absolute(retrieval.corpus) if retrieval.corpus else None
    retrieval.index_folder = str(Path(retrieval.index_folder).expanduser().absolute()) if retrieval.index_folder else None
    retrieval.embedding = _absolute(retrieval.embedding) if retrieval.embedding_url is None else retrieval.embedding
    for dataset in [config.data.train, *config.data.evaluation]:
        dataset.path = _absolute(dataset.path) if dataset.path else None


def _absolute(path: str) -> str:
    local = Path(path).expanduser()
    is_local = bool(path) and (local.exists() or path.startswith(("~", "./", "../")))
    return str(local.absolute()) if is_local else path


def resolve_output_dir(config: RunConfig, run_dir: Path, *, may_be_finished: bool = False) -> Path:
    """The absolute run folder: the chosen one, the newest of this name to resume, or a new one that does not exist yet.

    Raises `ConfigError` if there is nothing to resume, or if it has finished; one of several adapters may have.
    """
    chosen = Path(config.output_dir).expanduser().absolute() if config.output_dir else None
    if config.resume:
        runs = [chosen] if chosen is not None else sorted(run_dir.absolute().parent.glob("*/"), reverse=True)
        found = next((folder for folder in runs if is_run(folder, config.mode)), None)
        if found is None:
            where = f"{chosen} holds no" if chosen is not None else f"no folder in {run_dir.absolute().parent} holds a"
            remedy = f"{where} run with mode={config.mode.value}: set output_dir to the folder of an earlier run, or name to its "
            remedy += "name, or remove resume=true to begin a new run"
            raise ConfigError([Problem(key="resume", value=True, remedy=remedy)])
        if not may_be_finished and (remedy := why_finished(found, config)) is not None:
            raise ConfigError([Problem(key="resume", value=True, remedy=remedy)])
        return found
    if chosen is not None:
        return chosen
    new, number = run_dir.absolute(), 2
    while os.path.lexists(new):
        new, number = run_dir.absolute().with_name(f"{run_dir.name}_{number}"), number + 1
    return new


def why_finished(folder: Path, config: RunConfig) -> str | None:
    """The reason why a run's folder has no more to do, and the remedy; None if it has more, or nothing is started."""
    summary = read_summary(folder)
    if summary is None or config.mode is Mode.plan:
        return None
    steps, wanted = summary["num_steps"], config.trainer.num_steps if config.mode is Mode.train else 0
    earlier = read_config(folder)
    if steps < wanted or any(earlier.get(name) != plain(getattr(config, name)) for name in ("data", "evaluation")):
        return None
    more = f"trainer.num_steps={2 * wanted} to train on, " if wanted else ""
    what = f"all {steps} steps are trained" if wanted else "its evaluation is complete"
    return f"{folder} has finished ({what}): set {more}output_dir to the folder of another run, or leave out resume=true"


def is_run(folder: Path, mode: Mode) -> bool:
    """True if a folder holds a run of this mode that was started: its resolved configuration is there."""
    file = folder / "config.yaml"
    if not folder.is_dir() or folder.is_symlink() or not file.is_file():
        return False
    return mode is Mode.plan or f"mode: {mode.name}" in file.read_text(encoding="utf-8").splitlines()
