"""Comparisons in hidden tests, guarded against objects that claim to equal everything.

A program passes `assert solve(2) == 4` by returning an object whose `__eq__` is always true. Every `==` and `in` of a hidden
test, and unittest's assertions of equality, therefore also ask both sides, once they agree, whether they equal a fresh object
that no code has seen. A side that equals this object as well is reported, except for `unittest.mock.ANY`.
"""

import ast
import functools
import operator
import unittest
from collections.abc import Callable, Iterator
from typing import Any

NAME = "@vime_compared"
"""Name among the builtins by which rewritten tests find the guard; no Python source can spell it."""
PLAIN = (int, float, complex, bool, str, bytes, type(None))
CONTAINERS = (list, tuple, set, frozenset, dict)
MAX_ENTRIES, MAX_DEPTH = 10_000, 4
ASSERTIONS = (
    "assertEqual",
    "assertAlmostEqual",
    "assertIn",
    "assertCountEqual",
    "assertSequenceEqual",
    "assertListEqual",
    "assertTupleEqual",
    "assertSetEqual",
    "assertDictEqual",
)
"""Methods of unittest.TestCase that are given two values and fail if these are not equal in some sense."""
OPERATORS: dict[type[ast.cmpop], str] = {ast.Eq: "==", ast.In: "in"}


class Guard:
    """Compares for the hidden tests, and calls `accuse` where a value equals everything."""

    def __init__(self, accuse: Callable[[str], None]) -> None:
        self._accuse = accuse

    def compared(self, left: Any, symbol: str, right: Any) -> Any:
        """`left == right` or `left in right`, with a look at both sides if that is true."""
        result = left == right if symbol == "==" else operator.contains(right, left)
        if result is not False:
            self.look(left, right)
        return result

    def look(self, *values: Any) -> None:
        """Accuses the program if one of the values, or something in them, equals everything."""
        if any(equals_everything(value) for part in values for value in _parts(part, MAX_DEPTH)):
            self._accuse("returns an object that equals everything")
            raise AssertionError("an object equals everything")

    def guard_unittest(self) -> None:
        """Wraps unittest's assertions of equality."""
        for name in ASSERTIONS:
            setattr(unittest.TestCase, name, _wrapped(getattr(unittest.TestCase, name), self.look))


def equals_everything(value: Any) -> bool:
    """True if a value equals an object that it cannot know."""
    if type(value).__module__.partition(".")[0] == "unittest":
        return False
    try:
        return (value == object()) is True
    except Exception:  # whatever a program's own __eq__ raises for a foreign object: it does not claim to equal it
        return False


def rewrite(tree: ast.Module) -> None:
    """Puts the guard into every single comparison by `==` or `in` of a test module."""
    _Comparisons().visit(tree)
    ast.fix_missing_locations(tree)


class _Comparisons(ast.NodeTransformer):
    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        symbol = OPERATORS.get(type(node.ops[0]))
        if symbol is None or len(node.ops) > 1:
            return node
        arguments = [node.left, ast.Constant(symbol), node.comparators[0]]
        return ast.copy_location(ast.Call(func=ast.Name(id=NAME, ctx=ast.Load()), args=arguments, keywords=[]), node)


def _parts(value: Any, depth: int) -> Iterator[Any]:
    """The values in containers, without those of plain types."""
    kind = type(value)
    if kind in PLAIN:
        return
    if kind not in CONTAINERS:
        yield value
    elif depth and len(value) <= MAX_ENTRIES:
        entries = [*value.keys(), *value.values()] if kind is dict else value
        for entry in entries:
            yield from _parts(entry, depth - 1)


def _wrapped(method: Callable[..., None], look: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(method)
    def guarded(self: Any, first: Any, second: Any, *rest: Any, **named: Any) -> None:
        method(self, first, second, *rest, **named)
        look(first, second)

    return guarded
