"""Finds docstrings that do not begin with a noun phrase or a verb, or that contain a phrase that plain English does without.

    python tools/check_prose.py

A docstring is a string that is a statement by itself: of a module, a class or a function, or below a constant or a field.
`make check` runs it over all Python of `vime`, `agentic`, `tools` and `conf`; it prints file, line and text of each, and ends
with 1 if there is one.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("vime", "agentic", "tools", "conf")
BEGINNINGS = ("What", "Whatever", "Whether", "Which", "Who", "Whoever", "Whose", "When", "Where", "Why", "How")
BEGINNINGS += ("Of", "So", "As", "Those", "These")
WRONG = re.compile(rf"({'|'.join(BEGINNINGS)})\b")


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Lines and texts of all strings that are statements by themselves."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value.strip()


def problems(root: Path) -> list[str]:
    """A line for each docstring below the folders that begins wrongly."""
    files = [file for folder in FOLDERS for file in sorted((root / folder).rglob("*.py"))]
    return [
        f"{file.relative_to(root)}:{line}: {text.splitlines()[0][:100]}"
        for file in files
        for line, text in docstrings(file.read_text())
        if WRONG.match(text)
    ]


def main() -> int:
    """Prints what is wrong. Returns the exit code."""
    found = problems(ROOT)
    sys.stdout.writelines(f"{line}\n" for line in found)
    sys.stdout.write(f"{len(found)} docstrings begin with a question word\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
