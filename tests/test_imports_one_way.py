"""Imports go one way: `agentic` uses vime, and inside vime every layer uses only those below it."""

import ast
import functools
import re
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
VIME, AGENTIC = ROOT / "vime", ROOT / "agentic"
OF_ALL_METHODS = {"integrations"}
"""Folders beside those of the methods, which every method may use."""
TUTORIAL = {"tutorial"}
"""Uses the task of a method."""
BENCHMARKS = {"benchmarks"}
"""Scores models on tasks that methods have: RULER and τ²-bench."""
METHODS = sorted({file.parent.name for file in AGENTIC.glob("*/__init__.py")} - OF_ALL_METHODS - TUTORIAL - BENCHMARKS)
FLOORS = (
    {"blame", "errors", "machine", "surroundings", "tasks", "thinking", "threads", "vllm_parts"},
    {"types"},
    {"config"},
    {"hooks"},
    {"algorithm", "cluster", "files", "grading", "model", "tiny", "trajectory"},
    {"run_checkpoints", "data", "memory", "processes"},
    {"evaluation", "weights"},
    {"inside_vllm"},
    {"report", "runtime", "serving", "trainer"},
    {"chat"},
    {"gateway", "retrieval", "sync", "view", "warm"},
    {"agent"},
    {"preflight"},
    {"rehearsal"},
    {"new", "rollout"},
    {"environments"},
    {"reward_service", "workers"},
    {"orchestration"},
    {"batches", "step_clock", "system"},
    {"run_output"},
    {"loop", "trial"},
    {"rehearse"},
    {"run"},
    {"service"},
)
"""The rooms of vime from the ground up: folders, and the modules beside them."""


def modules(folder: Path) -> list[Path]:
    """All Python files below a folder."""
    return sorted(folder.rglob("*.py"))


class Contents(NamedTuple):
    """Facts about a file for the tests here, found in one walk, as several of them read all files."""

    imports: set[str]
    """Dotted names of all that it imports, also inside functions; `from vime import x` counts as vime.x."""
    executed_imports: set[str]
    """The imports except those under `if TYPE_CHECKING:`."""
    words: list[tuple[int, str]]
    """Strings and names with their lines, without documentation."""


@functools.cache
def contents(file: Path) -> Contents:
    """Reads a file once."""
    found = Contents(imports=set(), executed_imports=set(), words=[])
    waiting: list[tuple[ast.AST, bool]] = [(ast.parse(file.read_text()), True)]
    while waiting:
        node, is_executed = waiting.pop()
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            waiting += [*((child, False) for child in node.body), *((child, is_executed) for child in node.orelse)]
            continue
        names = names_imported(node)
        found.imports.update(names)
        found.executed_imports.update(names if is_executed else [])
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.words.append((node.lineno, node.value))
        elif isinstance(node, ast.Name):
            found.words.append((node.lineno, node.id))
        assert not (isinstance(node, ast.ImportFrom) and node.level), f"{file}: write imports from the top, vime.…"
        waiting += [(child, is_executed) for child in ast.iter_child_nodes(node)]
    return found


def names_imported(node: ast.AST) -> list[str]:
    """The dotted names that a statement imports; none if it is no import."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def module_of(name: str, known: set[str]) -> str | None:
    """The module of a dotted name of a module or of something in one; None if it is not among the known."""
    return name if name in known else parent if (parent := name.rpartition(".")[0]) in known else None


def rooms_of(file: Path) -> set[str]:
    """The rooms of vime (`config`, `serving`, …) that a file imports."""
    return {name.split(".")[1] for name in contents(file).imports if name.startswith("vime.")}


def room_of(file: Path) -> str:
    """The room of vime that a file is in."""
    return file.relative_to(VIME).parts[0].removesuffix(".py")


def test_vime_never_imports_a_method():
    wrong = {
        str(file.relative_to(ROOT)) for file in modules(VIME) if any(n.split(".")[0] == "agentic" for n in contents(file).imports)
    }
    assert not wrong


FOREIGN_NAMES = {("multi_agent", "agent/harness/codex.py")}
"""A word that names a method here and something else in another program: Codex has a feature of this name."""
COMMON_WORDS = {"database"}
"""A folder of examples whose name is a word of its own."""


@pytest.mark.parametrize("method", sorted({*METHODS} - COMMON_WORDS))
def test_no_module_of_vime_names_a_method_in_its_code(method: str):
    name = re.compile(rf"(?<![a-z]){method}(?![a-z])")  # encoding is not a method
    wrong = [
        f"{file.relative_to(ROOT)}:{line}"
        for file in modules(VIME)
        for line, word in contents(file).words
        if name.search(word.lower()) and (method, str(file.relative_to(VIME))) not in FOREIGN_NAMES
    ]
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


def test_training_on_a_cpu_has_one_door():
    for file in [*modules(VIME), *modules(AGENTIC), *modules(ROOT / "tools")]:
        if VIME / "trainer" / "cpu" not in file.parents:
            assert not {name for name in contents(file).imports if name.startswith("vime.trainer.cpu.")}, file


def test_no_module_imports_itself_by_way_of_others():
    files = {
        ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file
        for file in [*modules(VIME), *modules(AGENTIC)]
    }
    found = {name: {module_of(other, set(files)) for other in contents(file).executed_imports} for name, file in files.items()}
    TopologicalSorter({name: others - {None, name} for name, others in found.items()}).prepare()  # a CycleError names the modules


def test_a_circle_of_two_functions_imports_would_be_found(tmp_path: Path):
    (tmp_path / "one.py").write_text("from two import thing\n")
    (tmp_path / "two.py").write_text("def use():\n    from one import other\n")
    names = {"one", "two"}
    found = {name: {module_of(other, names) for other in contents(tmp_path / f"{name}.py").imports} for name in names}
    assert found == {"one": {"two"}, "two": {"one"}}


BUILT_ON = {"harbor": "coding"}
"""A method that runs the agent of another one on tasks of its own."""


def test_methods_use_vime_and_not_each_other():
    for folder in [*METHODS, *OF_ALL_METHODS]:
        others = {f"agentic.{method}" for method in METHODS if method not in (folder, BUILT_ON.get(folder))}
        for file in modules(AGENTIC / folder):
            assert not {name for name in contents(file).imports if ".".join(name.split(".")[:2]) in others}, file


def test_nothing_but_the_tests_imports_the_tests():
    for file in [*modules(VIME), *modules(AGENTIC), *modules(ROOT / "tools")]:
        assert not {name for name in contents(file).imports if name.split(".")[0] in ("tests", "conftest")}, file
