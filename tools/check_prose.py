"""Finds docstrings that do not begin with a noun phrase or a verb, or that contain a phrase which is unclear in English.

    python tools/check_prose.py

A docstring is a string that is a statement by itself: of a module, a class or a function, or below a constant or a field. It must
not begin with a question word or another of `BEGINNINGS`, and must contain none of `PHRASES` outside of backticks. `make check`
runs it over all Python of `vime`, `agentic`, `tools` and `conf`. It prints file, line and text of each problem, with the phrase
if there is one, and ends with 1 if it has found any.
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
PHRASES = ("so many", "of which", "nobody", "whoever", "is told", "are told")
PHRASE = re.compile(rf"\b({'|'.join(PHRASES)})\b", re.IGNORECASE)
CODE = re.compile(r"`[^`]*`")


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Lines and texts of all strings that are statements by themselves."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value.strip()


def faults(text: str) -> Iterator[str]:
    """The first line of a docstring that begins wrongly, and each phrase with the words around it."""
    if WRONG.match(text):
        yield text.splitlines()[0][:100]
    prose = CODE.sub("`…`", " ".join(text.split()))
    for found in PHRASE.finditer(prose):
        yield f'"{found[0]}" in: {prose[max(found.start() - 40, 0) : found.end() + 40]}'


def problems(root: Path) -> list[str]:
    """A line for each fault of the docstrings below the folders."""
    files = [file for folder in FOLDERS for file in sorted((root / folder).rglob("*.py"))]
    return [
        f"{file.relative_to(root)}:{line}: {fault}"
        for file in files
        for line, text in docstrings(file.read_text())
        for fault in faults(text)
    ]


def main() -> int:
    """Prints the problems. Returns the exit code."""
    found = problems(ROOT)
    sys.stdout.writelines(f"{line}\n" for line in found)
    sys.stdout.write(f"{len(found)} problems in docstrings\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
