"""The mark of the code and variables that a process has loaded: it may not run a request with others."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from vime.processes.users_code import is_installed

SUFFIXES = {".py", ".json", ".yaml", ".yml", ".jinja", ".txt"}
"""Files beside loaded modules that a hook may have read: code, prompts, templates, settings."""
OF_THE_TERMINAL = {
    *("_", "SHLVL", "OLDPWD", "PWD", "COLUMNS", "LINES", "TERM", "WINDOWID"),
    *("SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY"),
}
"""Variables that differ from one terminal to the next and change nothing in a run."""

Stamp = dict[str, int]
"""Time of the last change of each file, in nanoseconds, by its path."""


def stamp_of_code() -> Stamp:
    """The files beside every loaded module that is not of an installed package."""
    files = {file for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))}
    folders = {
        Path(folder).resolve() for folder in {os.path.dirname(file) for file in files}
    }  # there are fewer folders to resolve
    own = [folder for folder in folders if not is_installed(folder) and folder.is_dir()]
    files = [file for folder in own for file in folder.iterdir() if file.suffix in SUFFIXES and file.is_file()]
    return {str(file): file.stat().st_mtime_ns for file in files}


def changed_code(before: Stamp) -> str:
    """The first file that was changed, added or removed since; empty if none was.

    Folders of modules that were loaded meanwhile are left out, because they were read after `before`.
    """
    now, folders = stamp_of_code(), {Path(file).parent for file in before}
    known = {file: changed for file, changed in now.items() if Path(file).parent in folders}
    return next((file for file in sorted({*known, *before}) if known.get(file) != before.get(file)), "")


def changed_variable(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """The first environment variable that differs, except for those of the terminal; empty if none does."""
    names = sorted({*before, *now} - OF_THE_TERMINAL)
    return next((name for name in names if before.get(name) != now.get(name)), "")
