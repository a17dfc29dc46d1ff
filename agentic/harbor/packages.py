"""Packages of tasks from the registry, installed once into folders that workspaces show, and the stand-ins of installers.

    site = installed(task, task.tests.python, file=SCRIPT, cache_folder=None)
    # PosixPath("~/.cache/vime/harbor/packages/3f1c…"), with its programs in bin/

Only wheels are installed, since a source distribution would run its own code on this machine.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from agentic.harbor.shell_commands import Refusal, Requested
from agentic.harbor.task import HarborTask, RefusedError
from vime import surroundings
from vime.agent.bubblewrap import interpreter

INSTALL_SECONDS = 1800
INSTALLERS = ("apt-get", "apt", "curl", "wget", "uv", "uvx", "pip", "pip3")
_failed: dict[Path, str] = {}
"""Reasons of packages that this process could not install."""


def installed(task: HarborTask, wanted: Sequence[Requested], *, file: str, cache_folder: str | None) -> Path | None:
    """The folder of the packages that lines of a task's file ask for; None if they ask for none. It blocks.

    Raises RefusedError if they cannot be installed; the same packages are then not tried again by this process.
    """
    names = sorted({package.name for package in wanted})
    if not names:
        return None
    folder = _kept(cache_folder) / f"packages-{_digest(interpreter(), *names)}"
    if folder not in _failed and (failed := _install(names, folder)):
        _failed[folder] = failed
    if reason := _failed.get(folder, ""):
        lines = {package.line: package.text for package in wanted if package.name in reason}
        lines = lines or {wanted[0].line: wanted[0].text}
        refusals = [Refusal(file=file, line=line, text=text, reason=f"pip says: {reason}") for line, text in lines.items()]
        raise RefusedError(task.folder, refusals)
    return folder


def installers(*, cache_folder: str | None) -> Path:
    """A folder with the stand-ins of installers, programs of Python as workspaces have it, and a module `pip` in modules/."""
    text = files("agentic.harbor").joinpath("installers.py").read_text(encoding="utf-8")
    folder = _kept(cache_folder) / f"installers-{_digest(interpreter(), text)}"
    if not folder.is_dir():
        building = folder.with_name(f".building-{uuid.uuid4().hex}")
        module = building / "modules" / "pip"
        module.mkdir(parents=True)
        (module / "__init__.py").write_text("")
        (module / "__main__.py").write_text("import os, sys\n\nos.execvp('pip', ['pip', *sys.argv[1:]])\n")
        for name in INSTALLERS:
            (building / name).write_text(f"#!{interpreter()} -IS\n{text}")
            (building / name).chmod(0o755)
        _settle(building, folder)
    return folder


def _install(names: list[str], folder: Path) -> str:
    """Installs packages unless that has been done; returns the reason if they cannot be had."""
    with open(folder.with_suffix(".lock"), "w") as lock:  # one process of the node installs, the others wait
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():
            return ""
        building = folder.with_name(f".building-{uuid.uuid4().hex}")
        pip = [sys.executable, "-m", "pip", "--python", interpreter(), "--disable-pip-version-check", "--no-input"]
        words = [*pip, "install", "--quiet", "--only-binary=:all:", "--target", str(building), "--", *names]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=INSTALL_SECONDS)
        except subprocess.TimeoutExpired:
            shutil.rmtree(building, ignore_errors=True)
            return f"nothing for {INSTALL_SECONDS} seconds"
        if done.returncode:
            shutil.rmtree(building, ignore_errors=True)
            errors = [line.removeprefix("ERROR: ") for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
            return (errors or done.stderr.strip().splitlines() or ["nothing"])[-1]
        _settle(building, folder)
    return ""


def _settle(building: Path, folder: Path) -> None:
    """Gives a folder its name, unless another process was faster. Raises OSError if it can have none."""
    try:
        building.rename(folder)
    except OSError:
        shutil.rmtree(building, ignore_errors=True)
        if not folder.is_dir():
            raise


def _kept(cache_folder: str | None) -> Path:
    folder = Path(cache_folder).expanduser().absolute() / "harbor" if cache_folder else surroundings.cache_folder("harbor")
    os.makedirs(folder, exist_ok=True)
    return folder


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]
