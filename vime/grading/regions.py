"""Sets of real numbers: intervals, finite sets, solutions of linear inequalities, unions, intersections, complements."""

from dataclasses import dataclass
from fractions import Fraction

from vime.grading import expression as ex
from vime.grading.expression import Expression, Number, Unread, apply
from vime.grading.readings import Answer, AnswerList, Chain, Infinity, NamedSet, Sets

MIRRORED = {"<": ">", ">": "<", "le": "ge", "ge": "le", "=": "=", "ne": "ne"}
"""The signs of relations that are read from right to left."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """An interval from `low` to `high` with whether its ends belong to it; infinite ends are None."""

    low: Number | None
    high: Number | None
    closed: tuple[bool, bool]


@dataclass(frozen=True, kw_only=True, slots=True)
class Region:
    """Disjoint pieces in order."""

    pieces: tuple[Piece, ...]
    is_decimal: bool = False


_EVERYTHING = Region(pieces=(Piece(low=None, high=None, closed=(False, False)),))


def same_ends(one: Number | None, other: Number | None, is_decimal: bool) -> bool:
    """True if two ends of intervals are equal."""
    if one is None or other is None:
        return one is other
    return ex.equal_values(one, other, is_decimal=is_decimal)


def region_of(answer: Answer) -> Region:
    """The real numbers that an answer means. Raises Unread if it means no set of them."""
    match answer:
        case NamedSet(name="R"):
            return _EVERYTHING
        case Sets(sign=sign, left=left, right=right):
            one, other = region_of(left), region_of(right)
            if sign == "cup":
                return _union(one, other)
            return _intersection(one, other if sign == "cap" else _complement(other))
        case Chain():
            return _solutions(answer)
        case AnswerList(opening="", items=items) if all(isinstance(item, Chain) and item.signs != ("=",) for item in items):
            if len({_variable_of(item) for item in items if isinstance(item, Chain)}) > 1:
                raise Unread("several variables")
            regions = [region_of(item) for item in items]
            found = regions[0]
            for one in regions[1:]:
                found = _union(found, one) if answer.joined == "or" else _intersection(found, one)
            return found
        case AnswerList(opening="\\{", items=items):
            pieces = [Piece(low=end, high=end, closed=(True, True)) for end in map(_end, items) if end is not None]
            return _sorted(pieces, is_decimal=any(isinstance(item, Expression) and item.is_decimal for item in items))
        case AnswerList(opening="(" | "[", items=(first, last)):
            closed = (answer.opening == "[", answer.closing == "]")
            low, high = _end(first), _end(last)
            if low is not None and high is not None and not low < high:
                raise Unread("an interval without numbers")
            is_decimal = any(isinstance(item, Expression) and item.is_decimal for item in (first, last))
            piece = Piece(low=low, high=high, closed=(closed[0] and low is not None, closed[1] and high is not None))
            return Region(pieces=(piece,), is_decimal=is_decimal)
        case _:
            raise Unread("no set")


def _end(item: Answer) -> Number | None:
    """The number at an end of an interval, None if it is infinite."""
    if isinstance(item, Infinity):
        return None
    if not isinstance(item, Expression) or item.names:
        raise Unread("no number")
    value = item.value({})
    if not ex.is_real(value):
        raise Unread("no real number")
    return value


def _variable_of(chain: Chain) -> str:
    names = {name for part in chain.parts if isinstance(part, Expression) for name in part.names}
    if len(names) != 1:
        raise Unread("no single variable")
    return next(iter(names))


def _solutions(chain: Chain) -> Region:
    """The solutions of inequalities that are linear in one variable, and of `x \\in` a set."""
    name = _variable_of(chain)
    if chain.signs == ("in",):
        if chain.parts[0].symbol != name if isinstance(chain.parts[0], Expression) else True:
            raise Unread("no variable")
        return region_of(chain.parts[1])
    found = _EVERYTHING
    for left, sign, right in zip(chain.parts, chain.signs, chain.parts[1:]):
        if isinstance(left, Infinity) or isinstance(right, Infinity):
            continue
        if not isinstance(left, Expression) or not isinstance(right, Expression):
            raise Unread("no inequality")
        found = _intersection(found, _half_line(apply(ex.add, left, apply(ex.negative, right)), sign, name))
    return found


_PLACES = (Fraction(1), Fraction(-3, 7), Fraction(-1031, 5), Fraction(2, 3), Fraction(4409, 8), Fraction(10**7))
"""Points at which a line is distinguished from other functions."""


def _half_line(difference: Expression, sign: str, name: str) -> Region:
    """The interval on which a linear expression has a sign."""
    start, *values = (difference.value({name: place}) for place in (Fraction(0), *_PLACES))
    slope = ex.divide(ex.add(values[0], -start), _PLACES[0])
    line = [ex.add(start, ex.multiply(slope, place)) for place in _PLACES]
    if slope == 0 or not ex.is_real(slope) or not ex.is_real(start) or not all(map(ex.equal_values, values, line)):
        raise Unread("no linear inequality")
    root = ex.divide(-start, slope)
    if sign in ("=", "ne"):
        point = Region(pieces=(Piece(low=root, high=root, closed=(True, True)),), is_decimal=difference.is_decimal)
        return point if sign == "=" else _complement(point)
    if slope < 0:
        sign = MIRRORED[sign]
    is_closed = sign in ("le", "ge")
    if sign in (">", "ge"):
        piece = Piece(low=root, high=None, closed=(is_closed, False))
    else:
        piece = Piece(low=None, high=root, closed=(False, is_closed))
    return Region(pieces=(piece,), is_decimal=difference.is_decimal)


def _sorted(pieces: list[Piece], *, is_decimal: bool) -> Region:
    """The union of pieces: in order; pieces that touch are merged."""
    in_order = sorted(pieces, key=lambda piece: (piece.low is not None, piece.low or Fraction(0), not piece.closed[0]))
    found = list[Piece]()
    for piece in in_order:
        if not found or not _touch(found[-1], piece, is_decimal):
            found.append(piece)
            continue
        last = found.pop()
        high, is_closed = last.high, last.closed[1]
        if high is not None and (piece.high is None or piece.high > high):
            high, is_closed = piece.high, piece.closed[1]
        elif same_ends(high, piece.high, is_decimal):
            is_closed |= piece.closed[1]
        found.append(Piece(low=last.low, high=high, closed=(last.closed[0], is_closed)))
    return Region(pieces=tuple(found), is_decimal=is_decimal)


def _touch(one: Piece, other: Piece, is_decimal: bool) -> bool:
    if one.high is None or other.low is None:
        return True
    if same_ends(one.high, other.low, is_decimal):
        return one.closed[1] or other.closed[0]
    return other.low < one.high


def _union(one: Region, other: Region) -> Region:
    return _sorted([*one.pieces, *other.pieces], is_decimal=one.is_decimal or other.is_decimal)


def _complement(region: Region) -> Region:
    found, low, is_closed = list[Piece](), None, False
    for piece in region.pieces:
        if piece.low is not None and (low is None or low < piece.low or (is_closed and not piece.closed[0])):
            found.append(Piece(low=low, high=piece.low, closed=(is_closed, not piece.closed[0])))
        if piece.high is None:
            return Region(pieces=tuple(found), is_decimal=region.is_decimal)
        low, is_closed = piece.high, not piece.closed[1]
    found.append(Piece(low=low, high=None, closed=(is_closed, False)))
    return Region(pieces=tuple(found), is_decimal=region.is_decimal)


def _intersection(one: Region, other: Region) -> Region:
    return _complement(_union(_complement(one), _complement(other)))
