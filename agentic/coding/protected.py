"""The paths of a repository that decide about its tests, so that an agent's changes of them do not count.

Before hidden tests are run, these paths are as they were: files that the agent has changed are restored, files that it has added
are removed. This module also runs inside workspaces, so it needs the standard library only.
"""

import ast
import fnmatch
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

TEST_FOLDERS = ("test", "tests", "*_tests", "*_testcases", "__pycache__", ".git*", "*.egg-info", "*.dist-info")
"""Names of folders, and of files or links in their place, below which everything is protected."""
TEST_FILES = (
    "test_*.py",
    "*_test.py",
    "tests.py",
    "conftest.py",
    "pytest.ini",
    ".pytest.ini",
    "pytest.toml",
    ".pytest.toml",
    "tox.ini",
    "setup.cfg",
    "pyproject.toml",
    "sitecustomize.py",
    "usercustomize.py",
    "*.pth",
    "*.pyc",
    "*.so",
    "*.so.*",
    "*.pyd",
)
"""Names of files: tests, their configuration, files that Python runs at its start, and compiled modules."""
JUDGES = ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "py", "exceptiongroup", "tomli", "agentic")
"""Modules with which hidden tests are run; neither these nor the standard library's modules may be shadowed."""
MODULE_ROOTS = ("", "src", "lib")
"""Folders in which a module can be imported without a package."""
_PLUGIN_OPTION = re.compile(r"(?:^|[\s\"'=\[,])-p[\s\"',]*([A-Za-z_][\w.]*)")
CONFIGURATION = ("pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg", "pyproject.toml")


def is_protected(path: str, *, is_new: bool, plugins: Iterable[str] = ()) -> bool:
    """True if an agent's change of a path does not count; `plugins` are the paths of `plugin_paths`.

    A module with the name of one of the standard library or of pytest's is protected only if the agent has added it.
    """
    place = PurePosixPath(path)
    if any(fnmatch.fnmatchcase(part, pattern) for part in place.parts for pattern in TEST_FOLDERS):
        return True
    return (
        any(fnmatch.fnmatchcase(place.name, pattern) for pattern in TEST_FILES)
        or path in set(plugins)
        or (is_new and shadows(path))
    )


def shadows(path: str) -> bool:
    """True if a file is, or lies in, a module that shadows one of the standard library or of pytest."""
    parts = list(PurePosixPath(path).parts)
    first = parts[1] if len(parts) > 1 and parts[0] in MODULE_ROOTS else parts[0]
    name = first.partition(".")[0] if first.endswith(".py") or len(parts) > 1 else ""
    return name in sys.stdlib_module_names or name in JUDGES


def plugin_paths(texts: Mapping[str, str]) -> frozenset[str]:
    """Paths of the plug-ins that a repository's `conftest.py` files and configuration name; `texts` are these files by path."""
    modules: set[str] = set()
    for path, text in texts.items():
        if PurePosixPath(path).name in CONFIGURATION:
            modules.update(name for name in _PLUGIN_OPTION.findall(text) if name != "no")
        else:
            modules.update(_named_in_source(text))
    stems = {f"{root}/{name.replace('.', '/')}".strip("/") for name in modules for root in MODULE_ROOTS}
    return frozenset(f"{stem}{ending}" for stem in stems for ending in (".py", "/__init__.py"))


def _named_in_source(text: str) -> set[str]:
    """The plug-ins in `pytest_plugins` of a conftest.py."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return set()
    given = [(node.targets, node.value) for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    given += [([node.target], node.value) for node in ast.walk(tree) if isinstance(node, ast.AnnAssign) and node.value]
    named = [value for targets, value in given if "pytest_plugins" in (getattr(target, "id", "") for target in targets)]
    parts = [part for value in named for part in ast.walk(value) if isinstance(part, ast.Constant)]
    return {part.value for part in parts if isinstance(part.value, str)}
