"""Imports go one way: `agentic` uses vime, and inside vime every layer uses only those below it."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
VIME = ROOT / "vime"
METHODS = sorted(folder.name for folder in (ROOT / "agentic").iterdir() if (folder / "__init__.py").is_file())
FLOORS = (
    {"errors", "tasks", "threads"},
    {"config", "types"},
    {"agent", "cluster", "files", "grading", "hooks", "model", "tiny"},
    {"algorithm", "checkpoint", "data", "memory", "processes"},
    {"evaluation", "weights"},
    {"report", "serving", "trainer"},
    {"preflight", "retrieval", "sync"},
    {"new", "rollout"},
    {"reward_service", "step_clock", "system"},
    {"session"},
    {"loop"},
    {"run"},
)
"""The rooms of vime from the ground up: folders, and the modules that stand beside them."""


def modules(folder: Path) -> list[Path]:
    """All Python files below a folder."""
    return sorted(folder.rglob("*.py"))


def imported(file: Path) -> set[str]:
    """Dotted names of all modules that a file imports, also inside functions; `from vime import x` counts as vime.x."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        assert not (isinstance(node, ast.ImportFrom) and node.level), f"{file}: write imports from the top, vime.…"
    return names


def rooms_of(file: Path) -> set[str]:
    """The rooms of vime (`config`, `serving`, …) that a file imports."""
    return {name.split(".")[1] for name in imported(file) if name.startswith("vime.")}


def room_of(file: Path) -> str:
    """The room of vime that a file stands in."""
    return file.relative_to(VIME).parts[0].removesuffix(".py")


def node_line(node: ast.AST) -> int:
    """Where a node stands."""
    return getattr(node, "lineno", 0)


def test_vime_never_imports_a_method():
    wrong = {str(file.relative_to(ROOT)) for file in modules(VIME) if any(n.split(".")[0] == "agentic" for n in imported(file))}
    assert not wrong


@pytest.mark.parametrize("method", METHODS)
def test_no_module_of_vime_names_a_method_in_its_code(method: str):
    wrong = []
    for file in modules(VIME):
        tree = ast.parse(file.read_text())
        documentation = {
            id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        }
        for node in ast.walk(tree):
            text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
            name = node.id if isinstance(node, ast.Name) else ""
            if id(node) not in documentation and method in f"{text} {name}".lower():
                wrong.append(f"{file.relative_to(ROOT)}:{node_line(node)}")
    assert not wrong


def test_every_room_has_one_floor():
    rooms = sorted(room_of(file) for file in modules(VIME) if file != VIME / "__init__.py")
    assert sorted(room for floor in FLOORS for room in floor) == sorted(set(rooms))


def test_a_room_imports_only_rooms_on_the_floors_below():
    wrong, below = [], set()
    for floor in FLOORS:
        for file in modules(VIME):
            if room_of(file) in floor and (upwards := rooms_of(file) - below - {room_of(file)}):
                wrong.append(f"{file.relative_to(ROOT)} imports {', '.join(sorted(upwards))}")
        below |= floor
    assert not wrong


def test_no_module_of_vime_imports_itself_by_way_of_others():
    names = {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file for file in modules(VIME)}
    known = {name: {other for other in imported(file) if other in names and other != name} for name, file in names.items()}
    TopologicalSorter(known).prepare()  # raises a CycleError that names the modules


def test_methods_use_vime_and_not_each_other():
    for method in METHODS:
        others = {f"agentic.{other}" for other in METHODS if other != method}
        for file in modules(ROOT / "agentic" / method):
            assert not {name for name in imported(file) if ".".join(name.split(".")[:2]) in others}, file


def test_nothing_but_the_tests_imports_the_tests():
    for file in [*modules(VIME), *modules(ROOT / "agentic"), *modules(ROOT / "tools")]:
        assert not {name for name in imported(file) if name.split(".")[0] in ("tests", "conftest")}, file
