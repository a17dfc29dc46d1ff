"""QuixBugs: programs of one function with a bug in one line, their corrected versions, and tests.

Each task holds one program. Upstream's tests choose between wrong and corrected programs, read their cases from JSON files and
skip slow ones; here each test imports the one program and holds its cases.
"""

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentic.coding.patch import patch_between

HELPER = "node.py"
STATEMENT = (
    "python_programs/{name}.py is wrong: one line of it has to be changed, or one line is missing. Find the bug and correct it."
)


def rows(folder: Path, *, slow: bool = False) -> Iterator[dict[str, Any]]:
    """The programs of a copy of github.com/jkoppel/QuixBugs; with `slow` including cases that upstream skips as too slow."""
    helper = _text(folder / "python_programs" / HELPER)
    for test in sorted((folder / "python_testcases").glob("test_*.py")):
        name = test.stem.removeprefix("test_")
        path = f"python_programs/{name}.py"
        files = {path: _text(folder / path), f"python_programs/{HELPER}": helper}
        cases = folder / "json_testcases" / f"{name}.json"
        source = tests_of(_text(test), cases.read_text(encoding="utf-8") if cases.exists() else "", slow=slow)
        yield {
            "instance_id": f"quixbugs__{name}",
            "problem_statement": f"{STATEMENT.format(name=name)}\n\n{_description(files[path])}",
            "files": files,
            "patch": patch_between({path: files[path]}, {path: _text(folder / "correct_python_programs" / f"{name}.py")}),
            "tests": {f"python_testcases/test_{name}.py": source, f"python_testcases/{HELPER}": helper},
        }


def tests_of(source: str, cases: str, *, slow: bool) -> str:
    """A test module of upstream with its cases (JSON, one per line) in it, for the program that is to be corrected."""
    tree = ast.parse(source)
    skipped = [value for node in ast.walk(tree) if isinstance(node, ast.If) for value in _skipped(node)]
    kept = [case for case in map(json.loads, cases.splitlines()) if slow or case[0] not in skipped]
    body: list[ast.stmt] = []
    for node in tree.body:
        if isinstance(node, ast.If) and "use_correct" in ast.unparse(node.test):
            body += node.orelse
        elif isinstance(node, ast.ImportFrom) and node.module == "load_testdata":
            body.append(ast.parse("import json").body[0])
        elif isinstance(node, ast.Assign) and "load_json_testcases" in ast.unparse(node.value):
            body.append(ast.parse(f"testdata = json.loads({json.dumps(kept)!r})").body[0])
        else:
            if isinstance(node, ast.FunctionDef):
                node.body = [entry for entry in node.body if not (isinstance(entry, ast.If) and _skipped(entry))]
            body.append(node)
    tree.body = body
    return f"{ast.unparse(tree)}\n"


def _description(program: str) -> str:
    """A program's description of itself, in texts beside its code."""
    nodes = [node.value for node in ast.parse(program).body if isinstance(node, ast.Expr)]
    texts = [node.value for node in nodes if isinstance(node, ast.Constant)]
    return "\n\n".join(text.strip() for text in texts if isinstance(text, str))


def _skipped(node: ast.If) -> list[Any]:
    """The inputs for which an `if` skips a test."""
    if "pytest.skip" not in "".join(ast.unparse(entry) for entry in node.body):
        return []
    compared = [part.comparators[0] for part in ast.walk(node.test) if isinstance(part, ast.Compare)]
    return [ast.literal_eval(value) for value in compared]


def _text(file: Path) -> str:
    return f"{file.read_text(encoding='utf-8').rstrip()}\n"
