"""The command line of a sandbox: bubblewrap, with only the interpreter, its libraries and some packages of the host.

Root starts it in two stages: it binds the needed folders where every user can read them, then becomes the user `nobody`, who
starts the sandbox. The reason is that limits on processes do not bind root, and that `nobody` cannot read root's home folder.
"""

import importlib.util
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

_NOBODY = "65534"
_STAGE = Path("/mnt")
PACKAGES = "/packages"
PROGRAM = "/program.py"
ENVIRONMENT = {"HOME": "/tmp", "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""The environment of a program; numerical libraries get one thread, since more would only cost address space."""
INTERPRETER = ("-I", "-S", "-B", "-X", "utf8", "-c")
"""Options of the interpreter: isolated, without site packages (which makes it start fast), and without bytecode."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Files:
    """File descriptors that bubblewrap inherits: the program to run, the seccomp filter, and bubblewrap's status pipe."""

    program: int
    system_calls: int
    status: int


def sandbox_command(files: Files, *, packages: list[str], file_bytes: int, inside: list[str]) -> list[str]:
    """The command that runs `inside` in a sandbox of its own; paths in `inside` are those in the sandbox."""
    bwrap, setpriv = shutil.which("bwrap"), shutil.which("setpriv")
    assert bwrap is not None, "bubblewrap is missing: ask sandbox_problem() first"
    binds = _binds(packages)
    if os.geteuid() != 0:
        return [bwrap, *_options(files, binds, file_bytes), "--", *inside]
    assert setpriv is not None, "setpriv is missing: ask sandbox_problem() first"
    staged = {source: str(_STAGE / str(number)) for number, source in enumerate(binds)}
    outer = [bwrap, "--dev-bind", "/", "/", "--tmpfs", str(_STAGE), "--die-with-parent"]
    for source, place in staged.items():
        outer += ["--ro-bind", source, place]
    outer += ["--", setpriv, f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups", "--pdeathsig", "KILL", "--"]
    inner = {place: binds[source] for source, place in staged.items()}
    return [*outer, bwrap, *_options(files, inner, file_bytes), "--", *inside]


def interpreter() -> str:
    """The Python of a sandbox: the one that runs this process, outside its virtual environment."""
    return str(Path(getattr(sys, "_base_executable", sys.executable)).resolve())


def package_folders(packages: list[str]) -> dict[str, Path]:
    """Folders by name of the installed packages, and of the shared libraries that wheels install beside them.

    A module of one file has that file in place of a folder.
    """
    found: dict[str, Path] = {}
    for name in packages:
        spec = importlib.util.find_spec(name)
        if spec is not None and not spec.submodule_search_locations and (spec.origin or "").endswith(".py"):
            found[f"{name}.py"] = Path(spec.origin or "")
        for location in (spec.submodule_search_locations or []) if spec is not None else []:
            libraries = Path(location).with_name(f"{name}.libs")
            found |= {name: Path(location)} | ({libraries.name: libraries} if libraries.is_dir() else {})
    return found


def _binds(packages: list[str]) -> dict[str, str]:
    """Paths of the host that are visible in the sandbox, with their place there: read-only, without a shell or other programs."""
    prefix = Path(sys.base_prefix).resolve()
    folders = [prefix] if prefix not in (Path("/usr"), Path("/")) else [Path(interpreter())]
    folders += [folder for name in ("lib", "lib32", "lib64") if (folder := Path("/usr") / name).is_dir()]
    folders += [folder for name in ("lib", "lib64") if (folder := Path("/") / name).is_dir() and not folder.is_symlink()]
    binds = {str(folder): str(folder) for folder in folders}
    if Path("/etc/ld.so.cache").exists():
        binds["/etc/ld.so.cache"] = "/etc/ld.so.cache"
    return binds | {str(folder): f"{PACKAGES}/{name}" for name, folder in package_folders(packages).items()}


def _options(files: Files, binds: dict[str, str], file_bytes: int) -> list[str]:
    options = ["--unshare-all", "--unshare-user", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    options += ["--uid", _NOBODY, "--gid", _NOBODY, "--hostname", "sandbox", "--clearenv"]
    for name, value in ENVIRONMENT.items():
        options += ["--setenv", name, value]
    for name in ("lib", "lib64"):
        if (link := Path("/") / name).is_symlink():
            options += ["--symlink", os.readlink(link), str(link)]
    for source, target in binds.items():
        options += ["--ro-bind", source, target]
    options += ["--dev", "/dev", "--size", str(file_bytes), "--tmpfs", "/dev/shm"]
    options += ["--size", str(4 * file_bytes), "--tmpfs", "/tmp", "--chdir", "/tmp", "--file", str(files.program), PROGRAM]
    options += ["--remount-ro", "/dev", "--remount-ro", "/"]  # both are in memory, and had no limit
    return [*options, "--seccomp", str(files.system_calls), "--json-status-fd", str(files.status)]
