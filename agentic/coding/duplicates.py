"""Finds the same problem in several data sets, by its statement and by its reference solution."""

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from agentic.coding.patch import after_patch
from agentic.coding.task import INSTANCE, STATEMENT


@dataclass(frozen=True, kw_only=True, slots=True)
class Deduplicated:
    """The rows without duplicates. Example: `Deduplicated(rows=[…], dropped={"exercism__gcd": "quixbugs__gcd"})`."""

    rows: list[dict[str, Any]]
    dropped: dict[str, str]
    """Names of rows that were left out, with the name of the row that each one equals."""


def without_duplicates(rows: Iterable[dict[str, Any]], *, others: Iterable[dict[str, Any]] = ()) -> Deduplicated:
    """Leaves out rows that equal an earlier one, or one of `others`, in their statement or their reference solution."""
    seen: dict[tuple[str, str], str] = {}
    for row in others:
        seen.update(dict.fromkeys(_keys(row), str(row[INSTANCE])))
    kept, dropped = list[dict[str, Any]](), dict[str, str]()
    for row in rows:
        name, keys = str(row[INSTANCE]), _keys(row)
        same = next((seen[key] for key in keys if key in seen), None)
        if same is None:
            kept.append(row)
            seen.update(dict.fromkeys(keys, name))
        else:
            dropped[name] = same
    return Deduplicated(rows=kept, dropped=dropped)


def _keys(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    keys = [("statement", problem_key(row)), ("solution", solution_key(row))]
    return [(kind, key) for kind, key in keys if key]


def problem_key(row: Mapping[str, Any]) -> str:
    """The problem statement by which duplicates are found: in lower case, with single spaces."""
    return " ".join(str(row.get(STATEMENT) or "").lower().split())


def solution_key(row: Mapping[str, Any]) -> str:
    """The key by which duplicates are found: Python files after the reference solution, without documentation and own names.

    It is empty if the row does not hold its files; such a solution is never a duplicate.
    """
    try:
        texts = after_patch(row.get("files") or {}, str(row.get("patch") or ""))
        trees = [ast.parse(text) for path, text in sorted(texts.items()) if path.endswith(".py")]
    except (SyntaxError, ValueError):
        return ""
    trees = [_WithoutNames().visit(_without_documentation(tree)) for tree in trees]
    return "\n".join(ast.dump(tree) for tree in trees if tree.body)


def _without_documentation(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [part for part in body if not _is_text(part)] or [ast.Pass()]  # type: ignore[attr-defined]
    tree.body = [part for part in tree.body if not isinstance(part, (ast.Pass, ast.Import, ast.ImportFrom))]
    return tree


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


class _WithoutNames(ast.NodeTransformer):
    """Numbers a program's own names in the order in which they appear, and drops annotations."""

    def __init__(self) -> None:
        self._numbers: dict[str, str] = {}

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.name, node.returns, node.decorator_list = self._number(node.name), None, []
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return ast.arg(arg=self._number(node.arg), annotation=None)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        is_own = node.id in self._numbers or isinstance(node.ctx, ast.Store)
        return ast.Name(id=self._number(node.id), ctx=node.ctx) if is_own else node

    def _number(self, name: str) -> str:
        return self._numbers.setdefault(name, f"name{len(self._numbers)}")
