"""Computes expressions of numbers, the four operations and parentheses exactly; nothing is executed."""

import ast
from fractions import Fraction

MAX_CHARACTERS = 200


def computed(expression: str, *, integers: bool = False) -> tuple[Fraction, list[Fraction]]:
    """The exact value of an expression, and its numbers from left to right.

    Example: `computed("3 * (1 + 0.5)")` is `(Fraction(9, 2), [Fraction(3), Fraction(1), Fraction(1, 2)])`. Operators are Python's
    `+ - * /`. Raises ValueError for everything else (with `integers` also for decimals), for a division by zero, and for more
    than 200 characters.
    """
    if len(expression) > MAX_CHARACTERS:
        raise ValueError(f"an expression has at most {MAX_CHARACTERS} characters")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
        numbers: list[Fraction] = []
        return _value(tree.body, numbers, (int,) if integers else (int, float)), numbers
    except (SyntaxError, ZeroDivisionError, RecursionError, MemoryError) as error:
        raise ValueError(f"{expression!r} cannot be computed: {error}") from error


def _value(node: ast.expr, numbers: list[Fraction], kinds: tuple[type, ...]) -> Fraction:
    match node:
        case ast.Constant(value=value) if type(value) in kinds:
            numbers.append(Fraction(str(value)))
            return numbers[-1]
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div() as operator, right=right):
            first, second = _value(left, numbers, kinds), _value(right, numbers, kinds)
            if isinstance(operator, ast.Add):
                return first + second
            if isinstance(operator, ast.Sub):
                return first - second
            return first * second if isinstance(operator, ast.Mult) else first / second
    raise ValueError(f"{type(node).__name__} is not part of arithmetic")
