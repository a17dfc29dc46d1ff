"""Compares two readings of mathematical answers: equal, different, or None where neither can be decided.

Conventions: the order of a list without brackets does not matter, that of a tuple does; a name (`x = 3`, `f(x) = …`) and a
unit may be missing on one side; a reference in percent accepts the bare number; a numeral of another base than ten equals only
one of the same base; inequalities are the sets of their solutions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

from vime.grading import expression as ex
from vime.grading.expression import Expression, Number, Unread, apply
from vime.grading.readings import Amount, Answer, AnswerList, Chain, Infinity, Matrix, NamedSet, Numeral, Ratio, Sets, Words
from vime.grading.regions import MIRRORED, region_of, same_ends
from vime.grading.units import ANGLE

Verdict = bool | None


@dataclass(frozen=True, kw_only=True, slots=True)
class EqualityRules:
    """The rules, with `digits` as in `expression.compare`; `same(found, reference)` compares."""

    digits: int | None = None

    def same(self, found: Answer, reference: Answer) -> Verdict:
        """True if an answer equals the reference, False if it differs, None if neither can be decided."""
        if isinstance(found, Words) or isinstance(reference, Words):
            return True if found == reference else None
        found, reference = _without_names(found, reference)
        found, reference = _single(found), _single(reference)
        if isinstance(found, Expression) and isinstance(reference, Expression):
            return self._expressions(found, reference)
        if isinstance(found, (Amount, Ratio, Numeral, Infinity)) or isinstance(reference, (Amount, Ratio, Numeral, Infinity)):
            return self._marked(found, reference)
        if isinstance(found, Matrix) or isinstance(reference, Matrix):
            return self._matrices(found, reference)
        if (named := self._named(found, reference)) is not NotImplemented:
            return named
        if (
            isinstance(found, AnswerList)
            and isinstance(reference, AnswerList)
            and not _has_relations(found)
            and not _has_relations(reference)
        ):
            return self._lists(found, reference)
        return self._regions(found, reference)

    def _expressions(self, found: Expression, reference: Expression) -> Verdict:
        verdict = ex.compare(found, reference, digits=self.digits)
        if verdict is not True and reference.unit == "%" and found.unit != "%":
            bare = apply(ex.multiply, reference, ex.constant(Fraction(100)))
            verdict = ex.compare(found, bare, digits=self.digits) or verdict
        return verdict

    def _marked(self, found: Answer, reference: Answer) -> Verdict:
        """Amounts, ratios, numerals and infinities."""
        pair = (found, reference)
        for one, other in (pair, pair[::-1]):
            match one, other:
                case Amount(), Amount():
                    return self._amounts(one, other)
                case Amount(), Expression() if other.names:
                    return None  # a letter may be meant as a unit
                case Amount(), Expression():
                    same = ex.compare(one.number, other, digits=self.digits)
                    if same is not True and one.unit == ANGLE:
                        return ex.compare(apply(_radians, one.number), other, digits=self.digits) or same
                    return same
                case Ratio(), Ratio():
                    return self._ratios(one, other)
                case Ratio(), Expression() if len(one.parts) == 2:
                    return ex.compare(apply(ex.divide, *one.parts), other, digits=self.digits)
                case Numeral(), Numeral():
                    return one.value == other.value if one.base == other.base else None if one.value == other.value else False
                case Numeral(), Expression():
                    return None if ex.compare(ex.constant(Fraction(one.value)), other) is not False else False
                case Infinity(), Infinity():
                    return one.sign == other.sign
                case Infinity(), Expression():
                    return False
                case _:
                    pass
        return None

    def _amounts(self, one: Amount, other: Amount) -> Verdict:
        units = [dict(amount.unit.dimensions) for amount in (one, other)]
        if units[0] != units[1]:
            known = all(name in _DIMENSIONS for unit in units for name in unit)
            return False if known else None
        numbers = [apply(ex.multiply, amount.number, ex.constant(amount.unit.factor)) for amount in (one, other)]
        return ex.compare(numbers[0], numbers[1], digits=self.digits)

    def _ratios(self, one: Ratio, other: Ratio) -> Verdict:
        if len(one.parts) != len(other.parts):
            return False
        pairs = list(zip(one.parts, other.parts))
        crosses = [(apply(ex.multiply, pairs[0][0], b), apply(ex.multiply, a, pairs[0][1])) for a, b in pairs[1:]]
        return _all(ex.compare(left, right, digits=self.digits) for left, right in crosses)

    def _matrices(self, found: Answer, reference: Answer) -> Verdict:
        one, other = _rows_of(found), _rows_of(reference)
        if one is None or other is None:
            return False if isinstance(found, Expression) or isinstance(reference, Expression) else None
        if sorted((len(one), len(one[0]))) == sorted((len(other), len(other[0]))) and 1 in (len(one), len(one[0])):
            vectors = [[entry for row in rows for entry in row] for rows in (one, other)]
            both_matrices = isinstance(found, Matrix) and isinstance(reference, Matrix)
            verdict = _all(map(self._expressions, *vectors))
            return None if both_matrices and verdict and len(one) != len(other) else verdict
        if [len(row) for row in one] != [len(row) for row in other]:
            return False
        return _all(self._expressions(a, b) for pair in zip(one, other) for a, b in zip(*pair))

    def _lists(self, found: AnswerList, reference: AnswerList) -> Verdict:
        if _brackets(found) == _brackets(reference) == "{":
            found, reference = self._distinct(found), self._distinct(reference)
        sets = [one for one in (found, reference) if _brackets(one) == "{"]
        if {_brackets(found), _brackets(reference)} <= {"{", ""}:
            if len(sets) == 1:
                found, reference = self._distinct(found), self._distinct(reference)
            return self._unordered(found.items, reference.items)
        if len(found.items) != len(reference.items):
            return False
        verdict = _all(map(self.same, found.items, reference.items))
        if "" in (found.opening, reference.opening) or sets:
            return None if verdict is not False else self._unordered(found.items, reference.items) and None
        if (found.opening, found.closing) != (reference.opening, reference.closing) and len(found.items) == 2:
            return False
        return verdict

    def _distinct(self, answers: AnswerList) -> AnswerList:
        kept = list[Answer]()
        for item in answers.items:
            if not any(self.same(item, other) for other in kept):
                kept.append(item)
        return AnswerList(items=tuple(kept), opening=answers.opening, closing=answers.closing)

    def _unordered(self, found: Sequence[Answer], reference: Sequence[Answer]) -> Verdict:
        if len(found) != len(reference):
            return False
        left, is_unsure = list(reference), False
        for item in found:
            verdicts = [self.same(item, other) for other in left]
            if True not in verdicts:
                is_unsure |= None in verdicts
                if not is_unsure:
                    return False
                continue
            left.pop(verdicts.index(True))
        return None if is_unsure else not left

    def _named(self, found: Answer, reference: Answer) -> Any:
        """Equations, and values of several names; NotImplemented for anything else."""
        one, other = _values_by_name(found), _values_by_name(reference)
        if one is not None and other is not None and len(one) > 1:
            if set(one) != set(other):
                return False
            return _all(self.same(one[name], other[name]) for name in one)
        if (one is None) != (other is None):
            values, plain = (one or other or {}), reference if one is not None else found
            if len(values) > 1:
                if not isinstance(plain, AnswerList) or len(plain.items) != len(values):
                    return False if isinstance(plain, Expression) else None
                same = _all(map(self.same, values.values(), plain.items))
                return same if same or plain.opening == "(" else None
        if isinstance(found, Chain) and isinstance(reference, Chain):
            if set(found.signs) == set(reference.signs) == {"="}:
                return self._equations(found, reference)
            if len(found.signs) == len(reference.signs) == 1:
                verdict = self._inequalities(found, reference)
                return NotImplemented if verdict is None else verdict
        for chain, plain in ((found, reference), (reference, found)):
            if isinstance(chain, Chain) and isinstance(plain, Expression):
                return None if set(chain.signs) == {"="} and self.same(chain.parts[-1], plain) is not False else False
        return NotImplemented

    def _equations(self, found: Chain, reference: Chain) -> Verdict:
        if len(found.parts) != 2 or len(reference.parts) != 2:
            return None
        if not all(isinstance(part, Expression) for part in (*found.parts, *reference.parts)):
            return _all(map(self.same, found.parts, reference.parts)) or None
        return _proportional(found, reference, signed=False)

    def _inequalities(self, found: Chain, reference: Chain) -> Verdict:
        """True if both are the same up to a positive factor; None if this cannot be decided."""
        if not all(isinstance(part, Expression) for part in (*found.parts, *reference.parts)):
            return None
        if found.signs[0] == MIRRORED.get(reference.signs[0]) != reference.signs[0]:
            reference = Chain(parts=reference.parts[::-1], signs=found.signs)
        if found.signs != reference.signs:
            return None
        return True if _proportional(found, reference, signed=found.signs[0] != "ne") else None

    def _regions(self, found: Answer, reference: Answer) -> Verdict:
        if isinstance(found, NamedSet) and isinstance(reference, NamedSet):
            return found == reference
        try:
            one, other = region_of(found), region_of(reference)
        except (Unread, ex.Undefined):
            return self._alike(found, reference)
        is_decimal = one.is_decimal or other.is_decimal
        return one.pieces == other.pieces or (
            len(one.pieces) == len(other.pieces)
            and all(
                a.closed == b.closed and same_ends(a.low, b.low, is_decimal) and same_ends(a.high, b.high, is_decimal)
                for a, b in zip(one.pieces, other.pieces)
            )
        )

    def _alike(self, found: Answer, reference: Answer) -> Verdict:
        """True for readings of the same form with equal parts; None otherwise."""
        match found, reference:
            case Chain(), Chain() if found.signs == reference.signs:
                return _all(map(self.same, found.parts, reference.parts)) or None
            case Sets(), Sets() if found.sign == reference.sign:
                return _all((self.same(found.left, reference.left), self.same(found.right, reference.right))) or None
            case AnswerList(), AnswerList() if len(found.items) == len(reference.items) and found.joined == reference.joined:
                return _all(map(self.same, found.items, reference.items)) or None
            case (AnswerList(opening="") as several, Expression() as one) | (
                Expression() as one,
                AnswerList(opening="") as several,
            ):
                return _all(self.same(item, one) for item in several.items)  # the same in two notations: 1/2 or 0.5
            case _:
                return False if isinstance(found, Expression) or isinstance(reference, Expression) else None


_DIMENSIONS = {"length", "time", "mass", "volume", "dollar", "angle", "temperature", "€", "£", "¥", "calendar"}


def _all(verdicts: Any) -> Verdict:
    found = list(verdicts)
    return False if False in found else None if None in found else True


def _radians(number: Number) -> Number:
    return ex.multiply(number, ex.mp.pi / 180)


def _brackets(answers: AnswerList) -> str:
    return answers.opening.lstrip("\\")


def _single(answer: Answer) -> Answer:
    """The element of a set of one element, or of brackets around an expression."""
    if isinstance(answer, AnswerList) and len(answer.items) == 1 and isinstance(answer.items[0], (Expression, Amount, Infinity)):
        return answer.items[0]
    if isinstance(answer, Matrix) and len(answer.rows) == len(answer.rows[0]) == 1:
        return answer
    return answer


def _rows_of(answer: Answer) -> list[list[Expression]] | None:
    """The rows of a matrix, of a list of lists, or of a vector as one row."""
    if isinstance(answer, Matrix):
        return [list(row) for row in answer.rows]
    if not isinstance(answer, AnswerList) or _brackets(answer) not in ("(", "[") or not answer.items:
        return None
    rows = [list(item.items) if isinstance(item, AnswerList) else [item] for item in answer.items]
    if not all(isinstance(entry, Expression) for row in rows for entry in row) or len({len(row) for row in rows}) > 1:
        return None
    return [[entry for row in rows for entry in row]] if len(rows[0]) == 1 else rows  # type: ignore[misc]


def _has_relations(answers: AnswerList) -> bool:
    return any(isinstance(item, Chain) for item in answers.items)


def _name_of(answer: Answer) -> str:
    """The name that an answer is, "" if it is none."""
    if isinstance(answer, Words):
        return " ".join(answer.words)
    return answer.symbol if isinstance(answer, Expression) else ""


def _value_of(chain: Chain) -> Answer | None:
    """The value of an equation in a name or between numbers: `S = 1+2 = 3`, `3 = x`. Raises Unread if it contradicts itself."""
    if set(chain.signs) != {"="}:
        return None
    parts = chain.parts
    if not _is_label(parts[0]) and _is_label(parts[-1]):
        parts = parts[::-1]
    values = parts[1:] if _is_label(parts[0]) else parts
    first = parts[0]
    if (
        isinstance(first, Expression)
        and not first.symbol
        and first.names
        and isinstance(values[-1], Expression)
        and values[-1].names
    ):
        return None
    if values is parts and not all(isinstance(value, Expression) and not value.names for value in values):
        return None
    for one, other in pairwise(values):
        if EqualityRules().same(one, other) is not True:
            raise Unread("an equation that does not hold")
    return values[-1]


def _is_label(part: Answer) -> bool:
    """True if a side of an equation names the other: a name, or an expression of nothing but names, or a tuple of them."""
    if isinstance(part, AnswerList):
        return part.opening == "(" and all(map(_name_of, part.items))
    return bool(_name_of(part)) or (isinstance(part, Expression) and bool(part.names) and not part.has_numbers)


def _without_names(found: Answer, reference: Answer) -> tuple[Answer, Answer]:
    """Both answers, without their names where only one has any, or one of them lists several values."""
    sides = [found, reference]
    named = [_is_named(side) for side in sides]
    for index in (0, 1):
        if named[index] and (not named[1 - index] or type(found) is not type(reference)):
            sides[index] = _unnamed(sides[index])
    return sides[0], sides[1]


def _is_named(answer: Answer) -> bool:
    if isinstance(answer, Chain):
        return set(answer.signs) == {"="}
    if not isinstance(answer, AnswerList) or answer.opening or not answer.items or not _is_named(answer.items[0]):
        return False
    return all(_is_named(item) or not isinstance(item, Chain) for item in answer.items)  # x = 1, 2 names both


def _unnamed(answer: Answer) -> Answer:
    if isinstance(answer, Chain):
        value = _value_of(answer)
        return answer if value is None else value
    if isinstance(answer, AnswerList):
        values = _values_by_name(answer)
        if values is not None and len(values) == len(answer.items) > 1:
            return answer  # of several names: `_named` compares them
        return AnswerList(items=tuple(map(_unnamed, answer.items)), opening=answer.opening, closing=answer.closing)
    return answer


def _values_by_name(answer: Answer) -> dict[str, Answer] | None:
    """The values of `a=1, b=2` or `(a,b)=(1,2)`; None for anything else, and where a name has several values."""
    if isinstance(answer, Chain) and answer.signs == ("=",):
        left, right = answer.parts
        if (
            isinstance(left, AnswerList)
            and isinstance(right, AnswerList)
            and _is_label(left)
            and len(left.items) == len(right.items)
        ):
            return {_name_of(name): value for name, value in zip(left.items, right.items)}
        return {_name_of(left): right} if _name_of(left) else None
    if not isinstance(answer, AnswerList) or answer.opening or not answer.items:
        return None
    found = dict[str, Answer]()
    for item in answer.items:
        own = _values_by_name(item) if isinstance(item, Chain) else None
        if own is None or set(own) & set(found):
            return None
        found |= own
    return found


def _proportional(one: Chain, other: Chain, *, signed: bool) -> bool:
    """True if the differences of two relations' sides have a constant ratio, with `signed` a positive one."""
    sides = [[part for part in chain.parts if isinstance(part, Expression)] for chain in (one, other)]
    differences = [apply(ex.add, left, apply(ex.negative, right)) for left, right in sides]
    ratio = apply(ex.divide, *differences)
    values = []
    try:
        values = [ratio.value(point) for point in ex.points(ratio.names)]
    except (ex.Undefined, ZeroDivisionError, OverflowError):
        return False
    if signed and not all(ex.is_real(value) and value > 0 for value in values):
        return False
    return values[0] != 0 and all(ex.equal_values(value, values[0], is_decimal=ratio.is_decimal) for value in values)
