"""The folders of options besides vime's own `conf/`: those of the user, and those of installed methods.

A folder has the layout of ours (`method/mine.yaml` is the option `+method=mine`) and adds options; it replaces none. It is found

* in `--config-dir DIR` and `hydra.searchpath=[DIR,pkg://PACKAGE.conf]`, which mean the same,
* as `conf/` in the current folder, if it holds the file `vime.yaml`, so that the Hydra folder of another project is not read,
* as `conf/` in the package of an entry point of the group `vime.methods`.

All of them reach Hydra in one word, `hydra.searchpath=[…]`.
"""

import functools
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.plugins.search_path_plugin import SearchPathPlugin

from vime.errors import ConfigError, Problem
from vime.files.command_line import quoted

CONF = Path(__file__).resolve().parents[2] / "conf"
"""The folder of configuration files: beside the package, in a checkout and in an installation."""
MARKER = "vime.yaml"
"""Marks a folder `conf/` as one for vime; its content does not matter."""
KEY = "hydra.searchpath"
METHODS = "vime.methods"
"""Group of entry points: the module that registers the schema of an installed method."""


@functools.cache
def installed_methods() -> tuple[metadata.EntryPoint, ...]:
    """The entry points of installed methods, read once a process: that opens a file of every installed package."""
    return tuple(metadata.entry_points(group=METHODS))


def with_search_path(words: list[str]) -> list[str]:
    """The words of a command line, with one `hydra.searchpath` for all folders of options besides ours.

    Raises `ConfigError` for folders that do not exist, and for options that are defined twice.
    """
    folders = option_folders(words)
    if problems := defined_twice([CONF, *folders]):
        raise ConfigError(problems)
    others = [word for word in words if not _is_search_path(word)]
    first = next((index for index, word in enumerate(others) if "=" in word and not word.startswith("-")), 0)
    return [*others[:first], search_path_word(folders), *others[first:]] if folders else others


def search_path_word(folders: list[Path]) -> str:
    """The word that makes Hydra search folders, as absolute paths."""
    entries = [quoted(f"file://{folder.absolute()}") for folder in folders]
    return f"{KEY}=[{','.join(entries)}]"


def option_folders(words: list[str]) -> list[Path]:
    """All folders of options besides ours, each once. Raises `ConfigError` for those that do not exist."""
    problems: list[Problem] = []
    folders: list[Path] = []
    for entry in (entry for word in words if _is_search_path(word) for entry in _entries(word, problems)):
        if (folder := _folder(entry)) is not None and folder.is_dir():
            folders.append(folder)
        else:
            remedy = "there is no such folder or package: use folders and packages, [DIR,pkg://PACKAGE.conf]"
            problems.append(Problem(key=KEY, value=entry, remedy=remedy))
    if problems:
        raise ConfigError(problems)
    own = Path("conf").absolute()
    folders += [own] if (own / MARKER).is_file() else []
    folders += [folder for point in installed_methods() if (folder := _of_method(point.module)) is not None]
    unique: dict[Path, Path] = {}
    for folder in folders:
        unique.setdefault(folder.resolve(), folder)
    return [folder for place, folder in unique.items() if place != CONF.resolve()]


def defined_twice(folders: list[Path]) -> list[Problem]:
    """Options that more than one of the folders defines."""
    files: dict[Path, Path] = {}
    problems: list[Problem] = []
    for folder in folders:
        for file in sorted(folder.rglob("*.yaml")):
            option = file.relative_to(folder)
            if option == Path(MARKER):
                continue
            first = files.setdefault(option, file)
            if first != file:
                remedy = f"two files define this option, {first} and {file}: rename the second"
                problems.append(Problem(key=str(option.parent), value=option.stem, remedy=remedy))
    return problems


class FoundFolders(SearchPathPlugin):
    """Tells Hydra's shell completion, which reads no words, of the folders that are found without one."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Appends the folders."""
        for folder in option_folders([]):
            search_path.append(provider="vime", path=f"file://{folder}")


def why_unread(option: str) -> str:
    """The reason why an option in `conf/` of the current folder (`method/mine`) is not found; empty if none has that name."""
    own = Path("conf").absolute()
    if not (own / f"{option}.yaml").is_file() or (own / MARKER).is_file():
        return ""
    return f": {own} is not read, because it has no file {MARKER}: make an empty one, or use --config-dir conf"


def _is_search_path(word: str) -> bool:
    return word.startswith(f"{KEY}=")


def _entries(word: str, problems: list[Problem]) -> list[str]:
    """The folders and packages that a word names; a word that is not a list of them is a problem."""
    try:
        value: Any = OverridesParser.create().parse_override(word).value()
    except HydraException:
        value = word.partition("=")[2]
    if value is None:
        return []
    if isinstance(value, list) and all(isinstance(entry, str) for entry in value):
        return [str(entry) for entry in value]
    remedy = "is not a list of folders and packages: use for example [DIR,pkg://PACKAGE.conf]"
    problems.append(Problem(key=KEY, value=word.partition("=")[2], remedy=remedy))
    return []


def _folder(entry: str) -> Path | None:
    """The folder that an entry of Hydra's search path means, None for a package that is not installed."""
    scheme, separator, rest = entry.rpartition("://")
    if scheme == "pkg":
        return _package_folder(rest.replace("/", "."))
    return Path(rest).expanduser().absolute() if scheme == "file" or not separator else None


def _package_folder(name: str) -> Path | None:
    try:
        spec = find_spec(name)
    except Exception:  # the boundary of a package that is not ours: looking for a part of it runs its `__init__.py`
        return None
    return Path(next(iter(spec.submodule_search_locations))) if spec and spec.submodule_search_locations else None


def _of_method(module: str) -> Path | None:
    """`conf/` in the package that is a method's module, or that holds it; None if it has none."""
    package = _package_folder(module) or (_package_folder(module.rpartition(".")[0]) if "." in module else None)
    return package / "conf" if package is not None and (package / "conf").is_dir() else None
