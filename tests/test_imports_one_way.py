"""Imports go one way: `agentic` uses vime, and inside vime every layer uses only those below it."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
VIME = ROOT / "vime"
METHODS = sorted(folder.name for folder in (ROOT / "agentic").iterdir() if (folder / "__init__.py").is_file())
BASE = {"config", "column", "types", "errors", "weights", "hooks", "placement", "tasks"}
TOP = {"loop", "run", "session", "system", "sweep"}
PARTS = {"serving", "rollout", "trainer"}


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


def layers(file: Path) -> set[str]:
    """The parts of vime (`config`, `serving`, …) that a file imports."""
    return {name.split(".")[1] for name in imported(file) if name.startswith("vime.")}


def part_of(file: Path) -> str:
    """The part of vime that a file belongs to."""
    return file.relative_to(VIME).parts[0].removesuffix(".py")


def files_of(*parts: str) -> list[Path]:
    """The files of some parts of vime."""
    return [file for file in modules(VIME) if part_of(file) in parts]


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


@pytest.mark.parametrize("file", files_of(*BASE), ids=part_of)
def test_the_base_imports_nothing_above_it(file: Path):
    assert layers(file) <= BASE


@pytest.mark.parametrize("file", files_of("data", "algorithm", "grading", "report"), ids=lambda f: str(f.relative_to(VIME)))
def test_data_algorithm_grading_and_report_do_not_import_the_running_parts(file: Path):
    assert not layers(file) & (PARTS | TOP)


@pytest.mark.parametrize("file", files_of(*PARTS), ids=lambda f: str(f.relative_to(VIME)))
def test_serving_rollout_and_trainer_do_not_import_what_drives_them(file: Path):
    assert not layers(file) & TOP


def test_methods_use_vime_and_not_each_other():
    for method in METHODS:
        others = {f"agentic.{other}" for other in METHODS if other != method}
        for file in modules(ROOT / "agentic" / method):
            assert not {name for name in imported(file) if ".".join(name.split(".")[:2]) in others}, file


def test_nothing_but_the_tests_imports_the_tests():
    for file in [*modules(VIME), *modules(ROOT / "agentic"), *modules(ROOT / "tools")]:
        assert not {name for name in imported(file) if name.split(".")[0] in ("tests", "conftest")}, file
