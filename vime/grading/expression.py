"""Expressions as functions of their variables: exact while they can be, else computed to 400 digits, and compared by value.

Two expressions in variables are equal if their values are at a number of points (Schwartz-Zippel); the points are the same in
every process. Nothing is simplified, so that no rule of a simplifier is trusted.
"""

import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from mpmath import MPContext

from vime.grading.number import TOLERANCE

DIGITS = 400
LOG_BASE = "base of log"
"""The variable for the unwritten base of a logarithm."""
NUM_POINTS = 6
MAX_BITS = 200_000
"""Size of powers that are computed exactly."""
Number = Any
"""A Fraction, or mpmath's mpf or mpc."""
Point = Mapping[str, Number]

mp = MPContext()
mp.dps = DIGITS
_NOTHING = mp.mpf(10) ** (20 - DIGITS)
"""Relative size of the remainder that rounding leaves of a zero."""


class Unread(ValueError):
    """A text, or a part of it, that is not a formula."""


class Undefined(ValueError):
    """An expression has no value at a point, or none that can be computed to enough digits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Expression:
    """A function of its variables; `Expression(value=lambda point: point["x"] + 1, names=frozenset({"x"}))` is x + 1."""

    value: Callable[[Point], Number]
    names: frozenset[str] = frozenset()
    is_decimal: bool = False
    """True if a number in it is written with decimals."""
    has_numbers: bool = False
    symbol: str = ""
    """The name, of a variable alone."""
    unit: str = ""
    """`%` or `°` of a number that is followed by this sign alone; its value is then that of the sign as well."""


def constant(number: Number, *, is_decimal: bool = False) -> Expression:
    """A number."""
    return Expression(value=lambda _: number, is_decimal=is_decimal, has_numbers=True)


def variable(name: str) -> Expression:
    """A variable."""
    return Expression(value=lambda point: point[name], names=frozenset({name}), symbol=name)


def apply(function: Callable[..., Number], *parts: Expression) -> Expression:
    """A function of expressions."""
    return Expression(
        value=lambda point: function(*(part.value(point) for part in parts)),
        names=frozenset().union(*(part.names for part in parts)),
        is_decimal=any(part.is_decimal for part in parts),
        has_numbers=any(part.has_numbers for part in parts),
    )


def bound(expression: Expression, **values: Number) -> Expression:
    """The expression with some of its variables replaced by numbers."""
    inner = expression.value
    return replace(expression, value=lambda point: inner({**point, **values}), names=expression.names - set(values), symbol="")


def compare(first: Expression, second: Expression, *, digits: int | None = None) -> bool | None:
    """True if two expressions are equal; None if they are so at some points only, or cannot be computed.

    With `digits` numbers are equal if they agree when rounded to that number of significant digits.
    """
    names = first.names | second.names
    if LOG_BASE not in names:
        return _compare(first, second, digits)
    known = [_compare(first, second, digits)]
    known += [
        _compare(bound(first, **{LOG_BASE: base}), bound(second, **{LOG_BASE: base}), digits) for base in (Fraction(10), +mp.e)
    ]
    return True if known[0] else None if any(one is not False for one in known) else False


def _compare(first: Expression, second: Expression, digits: int | None) -> bool | None:
    names, is_decimal = first.names | second.names, first.is_decimal or second.is_decimal
    num_equal = num_unsure = 0
    for point in points(names):
        try:
            one, other = first.value(point), second.value(point)
        except (Undefined, OverflowError, ZeroDivisionError):
            num_unsure += 1
            continue
        if equal_values(one, other, is_decimal=is_decimal, digits=digits):
            num_equal += 1
        elif not names or (is_real(one) and is_real(other)):
            return False
        else:
            num_unsure += 1
    return True if num_equal and not num_unsure else None


def points(names: frozenset[str]) -> Iterator[dict[str, Number]]:
    """Points at which expressions in these variables are compared; none has an odd denominator, as roots are real for these."""
    numbers = random.Random(",".join(sorted(names)))
    for place in range(NUM_POINTS if names else 1):
        drawn = {name: Fraction(2 * numbers.randrange(8, 200) + 1, 64) for name in sorted(names)}
        yield {
            name: -value if place > 2 and numbers.random() < 0.7 and name != LOG_BASE else value for name, value in drawn.items()
        }


def equal_values(one: Number, other: Number, *, is_decimal: bool = False, digits: int | None = None) -> bool:
    """True if two numbers are equal: exactly, to 380 digits, or with decimals to nine."""
    if isinstance(one, Fraction) and isinstance(other, Fraction) and (one == other or not (is_decimal or digits)):
        return one == other
    one, other = real(one), real(other)
    if digits is not None and is_real(one) and is_real(other):
        return mp.nstr(one, digits) == mp.nstr(other, digits)
    limit = real(TOLERANCE) if is_decimal else _NOTHING
    return abs(one - other) <= limit * max(abs(one), abs(other))


def is_real(number: Number) -> bool:
    """True if a number has no imaginary part."""
    return not isinstance(number, mp.mpc)


def real(number: Number) -> Number:
    """A number as mpmath's, if it is a fraction."""
    return mp.mpf(number.numerator) / number.denominator if isinstance(number, Fraction) else number


def add(one: Number, other: Number) -> Number:
    """The sum, which is 0 where all digits cancel. Raises Undefined if the smaller number is lost in the rounding."""
    if isinstance(one, Fraction) and isinstance(other, Fraction):
        return one + other
    one, other = real(one), real(other)
    large, small = max(abs(one), abs(other)), min(abs(one), abs(other))
    if small and small < large * _NOTHING:
        raise Undefined
    return _clean(one + other, large)


def multiply(one: Number, other: Number) -> Number:
    """The product."""
    if isinstance(one, Fraction) and isinstance(other, Fraction):
        return one * other
    product = real(one) * real(other)
    return _clean(product, abs(product))


def divide(one: Number, other: Number) -> Number:
    """The quotient."""
    if other == 0:
        raise Undefined
    return multiply(one, 1 / other)


def negative(one: Number) -> Number:
    """The number with the other sign."""
    return -one


def power(base: Number, exponent: Number) -> Number:
    """The power; real for negative numbers and exponents with an odd denominator."""
    if base == 0:
        if not is_real(exponent) or exponent <= 0:
            raise Undefined
        return Fraction(0)
    if not isinstance(exponent, Fraction):
        result = mp.power(real(base), exponent)
        return _clean(result, abs(result))
    if exponent.denominator == 1:
        return _integer_power(base, exponent.numerator)
    if is_real(base) and base < 0 and exponent.denominator % 2:
        root = power(-base, exponent)
        return -root if exponent.numerator % 2 else root
    exact = _root(base, exponent.denominator) if isinstance(base, Fraction) and base > 0 else None
    if exact is not None:
        return _integer_power(exact, exponent.numerator)
    result = mp.power(real(base), real(exponent))
    return _clean(result, abs(result))


def _integer_power(base: Number, exponent: int) -> Number:
    if isinstance(base, Fraction):
        bits = max(base.numerator.bit_length(), base.denominator.bit_length()) * abs(exponent)
        if bits <= MAX_BITS or abs(base) == 1:
            return base**exponent if abs(base) != 1 else Fraction(-1 if base < 0 and exponent % 2 else 1)
    result = mp.power(real(base), exponent)
    return _clean(result, abs(result))


def _root(number: Fraction, degree: int) -> Fraction | None:
    """The exact root of a positive fraction, if it is a fraction."""
    if degree > 64 or max(number.numerator, number.denominator).bit_length() > 3000:
        return None
    roots = [int(mp.nint(mp.root(part, degree))) for part in (number.numerator, number.denominator)]
    return Fraction(roots[0], roots[1]) if Fraction(roots[0] ** degree, roots[1] ** degree) == number else None


def elementary(name: str) -> Callable[[Number], Number]:
    """A function of mpmath (`sin`, `exp`, `acos`, …), whose zeros are exact."""
    function = getattr(mp, name)

    def value(number: Number) -> Number:
        try:
            return _clean(function(real(number)), mp.one)
        except (ValueError, ZeroDivisionError) as error:
            raise Undefined from error

    return value


def quotient_of(above: str, below: str) -> Callable[[Number], Number]:
    """A function like the tangent, `quotient_of("sin", "cos")`; undefined at the zeros of the function below."""
    return lambda number: divide(elementary(above)(number) if above else Fraction(1), elementary(below)(number))


def logarithm(number: Number) -> Number:
    """The natural logarithm."""
    if number == 0:
        raise Undefined
    return elementary("log")(number)


def magnitude(number: Number) -> Number:
    """The absolute value."""
    return abs(number)


def floor(number: Number) -> Number:
    """The largest integer that is not larger."""
    if isinstance(number, Fraction):
        return Fraction(math.floor(number))
    if not is_real(number):
        raise Undefined
    nearest = mp.nint(number)
    return Fraction(int(nearest if abs(nearest - number) < _NOTHING else mp.floor(number)))


def ceiling(number: Number) -> Number:
    """The smallest integer that is not smaller."""
    return -floor(-number)


def factorial(number: Number) -> Number:
    """The factorial, between integers the gamma function."""
    if isinstance(number, Fraction) and number.denominator == 1:
        if number < 0:
            raise Undefined
        if number <= 20_000:
            return Fraction(math.factorial(int(number)))
    try:
        return mp.gamma(real(number) + 1)
    except ValueError as error:
        raise Undefined from error


def binomial(above: Number, below: Number) -> Number:
    """The binomial coefficient."""
    if not (isinstance(below, Fraction) and below.denominator == 1 and 0 <= below <= 2000):
        return divide(factorial(above), multiply(factorial(below), factorial(add(above, -below))))
    result: Number = Fraction(1)
    for place in range(int(below)):
        result = divide(multiply(result, add(above, Fraction(-place))), Fraction(place + 1))
    return result


def integers(function: Callable[..., int]) -> Callable[..., Number]:
    """A function of integers, like `math.gcd`."""

    def value(*numbers: Number) -> Number:
        if not all(isinstance(number, Fraction) and number.denominator == 1 for number in numbers):
            raise Undefined
        return Fraction(function(*map(int, numbers)))

    return value


def _clean(number: Number, scale: Number) -> Number:
    """The number without remainders of rounding: zero, and imaginary or real parts of nothing beside `scale`."""
    if isinstance(number, mp.mpc):
        above, side = number.real, number.imag
        above, side = (mp.zero if abs(part) <= scale * _NOTHING else part for part in (above, side))
        return mp.mpc(above, side) if side else above if above else Fraction(0)
    return Fraction(0) if abs(number) <= scale * _NOTHING else number
