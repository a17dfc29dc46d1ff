"""The traces of users' code in a process that takes part in several runs, one after another.

untouched = Untouched.now()                      # before any of it is called
…                                                # a run
if reason := untouched.changed(): …              # the process cannot take part in another run
untouched.forget_modules(["my_agent.generate"])  # the next run loads them anew
"""

import os
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import psutil

SET_BY_LIBRARIES = {
    *("KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK", "LD_LIBRARY_PATH", "PYTORCH_NVML_BASED_CUDA_CHECK"),
    *("TILELANG_CLEANUP_TEMP_FILES", "TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_COMPILE_THREADS", "TRITON_CACHE_AUTOTUNING"),
}
"""Variables that torch, Triton, vLLM and scikit-learn set when they are imported."""
OWN_THREADS = ("log size", "sandbox", "vime.", "watchdog")
"""Beginnings of the names of threads that vime starts, which end or wait by themselves."""
FOREIGN_THREAD = "Dummy-"
"""Beginning of the names that Python gives to threads of libraries in C when they call it."""
OF_FILES = "vime_hook_"
"""Beginning of the names of modules that were loaded from `file.py:function`."""
STAY = {"vime", "__main__", "__mp_main__", *sys.stdlib_module_names}
"""Packages that are loaded once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Untouched:
    """A process before it has run code of users. Example: `Untouched(variables={"PATH": …}, packages={"os", …}, …)`."""

    packages: set[str]
    """Packages with modules that are loaded."""
    variables: dict[str, str]
    search_path: list[str]
    """The search path without folders of installed packages, because some packages add folders of their own."""
    folder: str
    threads: list[threading.Thread]
    programs: list[psutil.Process]

    @classmethod
    def now(cls) -> "Untouched":
        """This process as it is."""
        return cls(
            packages={_package(name) for name in list(sys.modules)},
            variables=dict(os.environ),
            search_path=[folder for folder in sys.path if not is_installed(Path(folder))],
            folder=os.getcwd(),
            threads=threading.enumerate(),
            programs=psutil.Process().children(recursive=True),
        )

    def changed(self) -> str:
        """A change since then, modules aside, as text for the log; empty if there is none."""
        now = Untouched.now()
        names = sorted({name for name, _ in now.variables.items() ^ self.variables.items()} - SET_BY_LIBRARIES)
        threads = [thread.name for thread in now.threads if thread not in self.threads]
        threads = [name for name in threads if not name.startswith((*OWN_THREADS, FOREIGN_THREAD))]
        programs = [str(program.pid) for program in now.programs if program not in self.programs and not _is_own(program)]
        if names:
            return f"the environment variable {names[0]} has been changed"
        if (now.search_path, now.folder) != (self.search_path, self.folder):
            return "the search path or the current folder has been changed"
        if threads:
            return f"the thread {threads[0]} has been left"
        return f"the program {programs[0]} has been left" if programs else ""

    def forget_modules(self, hooks: Iterable[str]) -> None:
        """Has the next import of users' packages load them anew, without anything that they have kept in their modules.

        These are the packages of the hooks, and all others that are not installed and were not loaded before. A package with
        modules in C, which cannot be loaded twice, stays.
        """
        of_hooks = {_package(hook) for hook in hooks}
        found: dict[str, list[str]] = {}
        for name in list(sys.modules):
            found.setdefault(_package(name), []).append(name)
        for package, names in found.items():
            files = [Path(file) for name in names if (file := getattr(sys.modules[name], "__file__", None))]
            if package in STAY or not files or any(file.suffix != ".py" for file in files):
                continue
            is_users = package not in self.packages and not any(is_installed(file.resolve().parent) for file in files)
            if is_users or package in of_hooks or package.startswith(OF_FILES):
                for name in names:
                    del sys.modules[name]


def is_installed(folder: Path) -> bool:
    """True if a folder with code belongs to an installed package, or to Python."""
    return "site-packages" in folder.parts or str(folder).startswith((sys.prefix, sys.base_prefix))


def _is_own(program: psutil.Process) -> bool:
    """True if a program is a module of vime, as those that compare formulas, and waits for the next request."""
    try:
        words = program.cmdline()
        return any(pair[0] == "-m" and pair[1].startswith("vime.") for pair in pairwise(words)) and not program.children()
    except psutil.NoSuchProcess:
        return True


def _package(name: str) -> str:
    return name.partition(".")[0]
