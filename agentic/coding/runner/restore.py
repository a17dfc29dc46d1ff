"""Restores the protected paths of a repository to which a patch has been applied, and says which they were.

    python -I -S -B -c 'import sys; sys.path.append("/packages"); from agentic.coding.runner.restore import main; main()' < GIVEN

GIVEN is JSON, `{"root": "/testbed", "editable": ["tests/helpers.py"]}`; paths among `editable` count although they are protected.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import PurePosixPath

from agentic.coding.protected import CONFIGURATION, is_protected, plugin_paths

GIT = ("git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "core.attributesFile=/dev/null")


def main() -> None:
    """Restores protected files and prints `{"changed": […], "restored": […], "removed": […]}`."""
    given = json.load(sys.stdin)
    os.chdir(given["root"])
    changed = set(_git("diff", "--name-only", "--no-renames", "--no-ext-diff", "--no-textconv", "-z", "HEAD"))
    new = set(_git("ls-files", "--others", "-z"))
    was_there = set(_git("ls-tree", "-r", "--name-only", "-z", "HEAD")) if changed | new else set[str]()
    plugins, editable = plugin_paths(_configuration(was_there)), set(given["editable"])
    wrong = {
        path
        for path in changed | new
        if path not in editable and is_protected(path, is_new=path not in was_there, plugins=plugins)
    }
    removed, restored = sorted(wrong - was_there), sorted(wrong & was_there)
    for path in (*removed, *restored):
        _remove(path)
    if restored:
        subprocess.run([*GIT, "checkout", "-q", "HEAD", "--", *restored], check=True, env=_environment())
    report = {"changed": sorted(changed | new), "restored": restored, "removed": removed}
    sys.stdout.write(json.dumps(report))


def _git(*words: str) -> list[str]:
    output = subprocess.run([*GIT, *words], check=True, capture_output=True, env=_environment()).stdout
    return [os.fsdecode(path) for path in output.split(b"\0") if path]


def _environment() -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "HOME": "/nonexistent", "GIT_LITERAL_PATHSPECS": "1"}


def _configuration(paths: set[str]) -> dict[str, str]:
    """The original texts of conftest.py files and of configuration."""
    wanted = [path for path in paths if PurePosixPath(path).name in (*CONFIGURATION, "conftest.py")]
    show = {path: subprocess.run([*GIT, "show", f"HEAD:{path}"], capture_output=True, env=_environment()) for path in wanted}
    return {path: shown.stdout.decode(errors="replace") for path, shown in show.items()}


def _remove(path: str) -> None:
    """Removes a file, a link, or a folder in the place of a file. A file that blocks a needed folder is such a path as well."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


if __name__ == "__main__":
    main()
