"""Reads a mathematical answer whole: as an expression, a relation, a set, a tuple, a matrix, an amount with its unit, or words.

    read(r"x = \\frac12 \\text{ or } x > 3")

A reading accounts for every character of the text. Anything that is left over, cut off, ambiguous (`1/2x`) or unknown raises
Unread; it is never skipped.
"""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from vime.grading import expression as ex
from vime.grading.expression import Expression, Unread, apply, constant, variable
from vime.grading.formula_tokens import FONTS, SEPARATORS, FormulaToken, tokens_of
from vime.grading.readings import Amount, Answer, AnswerList, Chain, Infinity, Matrix, NamedSet, Numeral, Ratio, Sets, Words
from vime.grading.units import MONEY, Unit, is_unit, unit_of

RELATIONS = {"=", "<", ">", "le", "ge", "ne", "in"}
_SETS = {"cup", "cap", "setminus"}
_BASE_WORDS = "two three four five six seven eight nine ten eleven twelve"
_BASES: dict[str, int] = {word: base for base, word in enumerate(_BASE_WORDS.split(), start=2)}
_NUMERAL = re.compile(r"(-?)((?:[0-9A-Z]|\\(?:text|mathrm)\{[0-9A-Z]+\})+)_(?:\{(?:\\text\{)?\s*(\w+)\s*\}{1,2}|(\d))")
_NO_PRODUCT_WORDS = (
    "no yes odd one two six ten all any the not for is are to of on at by it as so an am pm if see mod per up he we "
    "day in out but dne"
)
_NO_PRODUCT = frozenset(_NO_PRODUCT_WORDS.split())
_GREEK_WORDS = (
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau upsilon phi "
    "varphi chi psi omega Gamma Delta Theta Lambda Xi Sigma Phi Psi Omega ell hbar"
)
_GREEK_NAMES = frozenset(_GREEK_WORDS.split())
_INVERSE = {"sin": "asin", "cos": "acos", "tan": "atan"}
_SINGLE: dict[str, Callable[..., ex.Number]] = {
    **{name: ex.elementary(name) for name in ("sin", "cos", "asin", "acos", "atan", "sinh", "cosh", "tanh", "exp")},
    **{"tan": ex.quotient_of("sin", "cos"), "cot": ex.quotient_of("cos", "sin"), "sec": ex.quotient_of("", "cos")},
    **{"csc": ex.quotient_of("", "sin"), "ln": ex.logarithm, "abs": ex.magnitude, "floor": ex.floor, "ceil": ex.ceiling},
    **{"lg": lambda number: ex.divide(ex.logarithm(number), ex.logarithm(Fraction(10)))},
}
_SEVERAL: dict[str, Callable[..., ex.Number]] = {
    "gcd": ex.integers(math.gcd),
    "lcm": ex.integers(math.lcm),
    "max": ex.integers(max),
    "min": ex.integers(min),
    "binom": ex.binomial,
}
_FUNCTIONS = {*_SINGLE, *_SEVERAL, "log", "sqrt", "cbrt"}
_BRACKETS = {"lfloor": ("rfloor", ex.floor), "lceil": ("rceil", ex.ceiling)}
CHOICES = frozenset("ABCDEFGHIJ")
PLUS_MINUS = "±"
"""First character of the names of variables whose value is 1 or -1."""
_MATRICES = (*(f"begin {name}matrix" for name in ("", "p", "b", "v", "V", "B", "small")), "begin array")
_HALF = constant(Fraction(1, 2))


def read(text: str) -> Answer:
    """The reading of a whole answer: a formula, or words if it has nothing else. Raises Unread for everything that is neither."""
    bare = _unquoted(text.strip())
    if numeral := _numeral(bare.strip("$")):
        return numeral
    try:
        return FormulaParser(tokens_of(bare)).answer()
    except (Unread, RecursionError):
        words = words_of(bare.strip("$").strip())
        if words is None:
            raise Unread(text) from None
        return words


def _unquoted(text: str) -> str:
    """A text without the quotation marks in which programs, and ReTool's prompt, put a whole answer."""
    if len(text) > 2 and text[0] == text[-1] and text[0] in "'\"`" and text.count(text[0]) == 2:
        return text[1:-1].strip()
    return text


def words_of(text: str) -> Words | None:
    """The words of a text, in lower case; None if it has anything but letters, digits and punctuation."""
    bare = re.sub(rf"\\(?:{'|'.join(sorted(FONTS))})\s*\{{([^{{}}]*)\}}", r"\1", text).replace("\\ ", " ")
    if re.search(r"[^\w\s.,:;!?'\u2019()\-]|_", bare) or not re.search(r"[^\W\d_]", bare):
        return None
    return Words(words=tuple(re.findall(r"[^\W_]+", re.sub(r"(?<=\b\w)\.", "", bare.lower()))))


def _numeral(text: str) -> Numeral | None:
    match = _NUMERAL.fullmatch(text.replace(" ", ""))
    if not match or not any(character.isdigit() for character in match.group(2)):
        return None
    digits, word = re.sub(r"\\(?:text|mathrm)\{|\}", "", match.group(2)), (match.group(3) or match.group(4)).lower()
    base = _BASES.get(word) or (int(word) if word.isdigit() else 0)
    if not 2 <= base <= 36:
        return None
    try:
        return Numeral(value=int(match.group(1) + digits, base), base=base)
    except ValueError:
        raise Unread(text) from None


class FormulaParser:
    """Reads tokens by recursive descent; each method reads the element that it is named after, from the present position."""

    def __init__(self, tokens: list[FormulaToken]) -> None:
        self._tokens, self._position = tokens, 0
        self._num_signs, self._correlated = 0, any(token.text == "mp" and token.kind == "command" for token in tokens)
        self._bars = 0

    def answer(self) -> Answer:
        """The whole text."""
        words = [token.text for token in self._tokens[:4]]
        if (
            len(words) == 4
            and words[0] == "("
            and words[1] in CHOICES
            and words[2] == ")"
            and self._begins_factor(self._tokens[3])
        ):
            raise Unread("a choice with what it says")
        found = self._items(end="")
        if self._position < len(self._tokens) or not found.items:
            raise Unread("a rest")
        expanded = tuple(one for item in found.items for one in _expanded(item))
        return expanded[0] if len(expanded) == 1 else replace(found, items=expanded)

    # Lists and relations

    def _items(self, *, end: str) -> AnswerList:
        """Answers separated by commas, semicolons, `and` or `or`, up to a closing sign."""
        items, joined = list[Answer](), set[str]()
        if end and self._sees(end):
            return AnswerList(items=())
        while True:
            items.append(self._piece())
            word = self._separator()
            if not word:
                break
            joined.add(word)
        joined -= {","} if len(joined) > 1 else set()
        if len(joined) > 1:
            raise Unread("and beside or")
        return AnswerList(items=tuple(items), joined=next(iter(joined), ","))

    def _separator(self) -> str:
        word = ""
        while token := self._peek():
            is_word = token.text in SEPARATORS and token.kind in ("words", "letters")
            if is_word:
                word = token.text
            elif token.kind == "sign" and token.text in (",", ";") and not word:
                word = ","
            else:
                break
            self._position += 1
        return word

    def _piece(self) -> Answer:
        parts, signs = [self._operand()], list[str]()
        while (token := self._peek()) and token.text in RELATIONS and token.kind != "letters":
            self._position += 1
            signs.append(token.text)
            parts.append(self._operand())
        return Chain(parts=tuple(parts), signs=tuple(signs)) if signs else parts[0]

    def _operand(self) -> Answer:
        if name := self._name():
            return name
        found = self._sum()
        while (token := self._peek()) and token.kind == "command" and token.text in _SETS:
            self._position += 1
            found = Sets(sign=token.text, left=found, right=self._sum())
        if self._sees(":") and isinstance(found, Expression):
            parts = [found]
            while self._takes(":"):
                parts.append(_number_of(self._sum()))
            return Ratio(parts=tuple(parts))
        return found

    def _name(self) -> Words | None:
        """Reads the definition on the left of an equals sign: words, or a function with its variables."""
        start = self._position
        if (token := self._peek()) and token.kind == "words" and self._is_equals(start + 1):
            self._position += 1
            return Words(words=(token.text.lower(),))
        if token and token.kind == "letters" and len(token.text) == 1 and self._text_at(start + 1) == "(":
            position = start + 2
            while position < len(self._tokens) and (self._tokens[position].kind == "letters" or self._text_at(position) == ","):
                position += 1
            if position > start + 2 and self._text_at(position) == ")" and self._is_equals(position + 1):
                self._position = position + 1
                return Words(words=(f"{token.text}(…)",))
        return None

    # Expressions

    def _sum(self) -> Answer:
        is_negative = self._sees("-") and self._text_at(self._position + 1) in MONEY
        self._position += is_negative
        money = self._money()
        found = self._signed()
        if is_negative:
            found = apply(ex.negative, _number_of(found))
        while (token := self._peek()) and token.text in ("+", "-", "pm", "mp") and token.kind != "letters":
            self._position += 1
            term = _number_of(self._signed() if self._sees("-") else self._term())
            found = apply(ex.add, _number_of(found), self._with_sign(token.text, term))
        if money:
            return Amount(number=_number_of(found), unit=money)
        return self._with_unit(found)

    def _signed(self) -> Answer:
        token = self._peek()
        if token is None or token.text not in ("+", "-", "pm", "mp"):
            return self._term()
        self._position += 1
        found = self._signed()
        if isinstance(found, Infinity) and token.text in ("+", "-"):
            return Infinity(sign=-found.sign if token.text == "-" else found.sign)
        if isinstance(found, Matrix):
            return _scaled(self._with_sign(token.text, constant(Fraction(1))), found)
        return self._with_sign(token.text, _number_of(found))

    def _with_sign(self, sign: str, term: Expression) -> Expression:
        if sign == "+":
            return term
        if sign == "-":
            return replace(apply(ex.negative, term), unit=term.unit)
        if not self._correlated:
            self._num_signs += 1
        factor = variable(f"{PLUS_MINUS}{self._num_signs}")
        factor = apply(ex.negative, factor) if sign == "mp" else factor
        return apply(ex.multiply, factor, term)

    def _term(self) -> Answer:
        found, after_slash, was_number = self._factor(), False, self._was_number()
        while token := self._peek():
            if (token.kind == "command" and token.text in ("cdot", "times")) or token.text == "*":
                self._position += 1
                found, after_slash, was_number = _product(found, self._signed_factor()), False, False
            elif token.text == "/" or (token.kind == "command" and token.text == "div"):
                if self._begins_unit(self._position + 1):
                    break
                self._position += 1
                found = apply(ex.divide, _number_of(found), _number_of(self._signed_factor()))
                after_slash, was_number = token.text == "/", False
            elif self._begins_factor(token):
                if after_slash and not token.after_space:
                    raise Unread("a product behind a slash")
                if token.kind == "number" and was_number:
                    raise Unread("two numbers side by side")
                start = self._position
                found, was_number = _product(found, self._factor()), self._was_number() and self._position == start + 1
            else:
                return found
        return found

    def _signed_factor(self) -> Answer:
        """A factor behind a sign of multiplication, which may have a minus of its own."""
        if self._takes("-"):
            return apply(ex.negative, _number_of(self._signed_factor()))
        return self._factor()

    def _begins_factor(self, token: FormulaToken) -> bool:
        if token.kind == "number":
            return True
        if token.kind == "letters":
            return token.text not in SEPARATORS and not self._begins_unit(self._position) and token.text != "percent"
        if token.kind == "words":
            return len(token.text) == 1 and not self._begins_unit(self._position)
        if token.kind == "command":
            known = _FUNCTIONS | _GREEK_NAMES | {"frac", "pi", "infty", "lfloor", "lceil", "langle", "overline", "vec", "hat"}
            return token.text in known or token.text in _MATRICES
        return token.text in ("(", "{") or (token.text == "|" and not self._bars)

    def _factor(self) -> Answer:
        found = self._primary()
        while token := self._peek():
            if token.text == "^" and token.kind == "sign":
                self._position += 1
                if self._takes_circ():
                    found = _in_degrees(_number_of(found))
                    continue
                found = apply(ex.power, _number_of(found), self._exponent())
            elif token.text == "!" and token.kind == "sign":
                self._position += 1
                found = apply(ex.factorial, _number_of(found))
            elif token.text == "%" or (token.text == "percent" and token.kind in ("letters", "words")):
                self._position += 1
                found = replace(apply(ex.divide, _number_of(found), constant(Fraction(100))), unit="%")
            elif token.text == "circ" and token.kind == "command":
                self._position += 1
                found = _in_degrees(_number_of(found))
            else:
                return found
        return found

    def _takes_circ(self) -> bool:
        if self._takes("circ"):
            return True
        if self._sees("{") and self._text_at(self._position + 1) == "circ" and self._text_at(self._position + 2) == "}":
            self._position += 3
            return True
        return False

    def _exponent(self) -> Expression:
        if self._takes("-"):
            return apply(ex.negative, self._exponent())
        base = _number_of(self._primary())
        return apply(ex.power, base, self._exponent()) if self._takes("^") else base

    def _primary(self) -> Answer:
        token = self._take()
        if token.kind == "number":
            return self._mixed(token)
        if token.kind == "letters":
            return self._letters(token)
        if token.kind == "words" and len(token.text) == 1 and token.text.isalpha():
            return self._letters(FormulaToken(kind="letters", text=token.text))
        if token.kind == "command":
            return self._command(token.text)
        if token.kind == "sign" and token.text in ("(", "[", "\\{", "{"):
            return self._bracketed(token.text)
        if token.kind == "sign" and token.text == "|":
            self._bars += 1
            found = apply(ex.magnitude, _number_of(self._sum()))
            self._bars -= 1
            self._expect("|")
            return found
        raise Unread(token.text)

    def _mixed(self, token: FormulaToken) -> Expression:
        """A number, with the fraction that follows a whole one: 2\\frac13, or 2 1/3."""
        number = constant(token.number, is_decimal=token.is_decimal)
        if not token.text.isdigit():
            return number
        if self._sees("frac"):
            self._position += 1
            above, below = self._argument(), self._argument()
            numbers = [_integer(above), _integer(below)]
            if None not in numbers and 0 < (numbers[0] or 0) < (numbers[1] or 0):
                return constant(token.number + Fraction(numbers[0] or 0, numbers[1] or 1))
            if None in numbers:
                return apply(ex.multiply, number, apply(ex.divide, above, below))
            raise Unread("a number beside a fraction")
        ahead = self._tokens[self._position : self._position + 3]
        if len(ahead) < 3 or ahead[1].text != "/" or not all(one.kind == "number" and one.text.isdigit() for one in ahead[::2]):
            return number
        if ahead[0].after_space and not ahead[1].after_space and 0 < ahead[0].number < ahead[2].number:
            self._position += 3
            return constant(token.number + ahead[0].number / ahead[2].number)
        return number

    def _letters(self, token: FormulaToken) -> Answer:
        name = token.text
        if name in _FUNCTIONS and (len(name) > 1) and (self._sees("(") or self._sees("^") or self._sees("_")):
            return self._function(name)
        known = {
            "pi": Expression(value=lambda _: +ex.mp.pi, has_numbers=True),
            "infinity": Infinity(sign=1),
            "inf": Infinity(sign=1),
        }
        if name in known:
            return known[name]
        if len(name) > 3 or name.lower() in _NO_PRODUCT:
            raise Unread(name)
        self._tokens[self._position : self._position] = [FormulaToken(kind="letters", text=letter) for letter in name[1:]]
        return self._symbol(name[0])

    def _symbol(self, name: str) -> Expression:
        if self._takes("_"):
            return variable(f"{name}_{self._subscript()}")
        if self._sees("'"):
            raise Unread("a derivative")
        return _letter(name)

    def _subscript(self) -> str:
        token = self._take()
        if token.text != "{":
            return token.text
        found = ""
        while not self._takes("}"):
            found += self._take().text
        return found

    def _command(self, name: str) -> Answer:
        if name in _FUNCTIONS:
            return self._function(name)
        if name == "frac":
            return apply(ex.divide, self._argument(), self._argument())
        if name == "pi":
            return Expression(value=lambda _: +ex.mp.pi, has_numbers=True)
        if name == "infty":
            return Infinity(sign=1)
        if name == "emptyset":
            return AnswerList(items=(), opening="\\{", closing="\\}")
        if name.startswith("mathbb "):
            return NamedSet(name=name.removeprefix("mathbb "))
        if name in _GREEK_NAMES:
            return self._symbol(f"\\{name}")
        if name in _BRACKETS:
            closing, function = _BRACKETS[name]
            found = apply(function, _number_of(self._sum()))
            self._expect(closing)
            return found
        if name == "langle":
            items = self._items(end="rangle")
            self._expect("rangle")
            return replace(items, opening="(", closing=")")
        if name in _MATRICES:
            return self._matrix(name)
        raise Unread(name)

    def _function(self, name: str) -> Expression:
        if name == "sqrt":
            return apply(ex.power, *self._root())
        if name == "binom" and self._sees("{"):
            return apply(ex.binomial, self._argument(), self._argument())
        base = self._argument() if name == "log" and self._takes("_") else None
        exponent: Expression | None = None
        if self._takes("^"):
            exponent = self._exponent_argument()
            if _integer(exponent) == -1 and name in _INVERSE:
                name, exponent = _INVERSE[name], None
        if name in _SEVERAL:
            self._expect("(")
            items = self._items(end=")")
            self._expect(")")
            return apply(_SEVERAL[name], *map(_number_of, items.items))
        inner = self._function_argument()
        if name == "log":
            below = apply(ex.logarithm, base if base is not None else variable(ex.LOG_BASE))
            found = apply(ex.divide, apply(ex.logarithm, inner), below)
        elif name == "cbrt":
            found = apply(ex.power, inner, constant(Fraction(1, 3)))
        else:
            found = apply(_SINGLE[name], inner)
        return apply(ex.power, found, exponent) if exponent is not None else found

    def _exponent_argument(self) -> Expression:
        if self._takes("-"):
            return apply(ex.negative, self._argument())
        return self._argument()

    def _root(self) -> tuple[Expression, Expression]:
        degree = _HALF
        if self._takes("["):
            degree = apply(ex.divide, constant(Fraction(1)), _number_of(self._sum()))
            self._expect("]")
        if self._sees("(") or self._sees("{"):
            return _number_of(self._primary()), degree
        token = self._peek()
        if token and token.kind == "number" and len(token.text) > 1 and token.text.isdigit():
            raise Unread("a root without braces")
        return _number_of(self._primary()), degree

    def _function_argument(self) -> Expression:
        """Reads the argument of a function: brackets, or factors side by side up to another function or operator."""
        if self._sees("(") or self._sees("{"):
            return _number_of(self._factor_without_power())
        found = _number_of(self._factor())
        while token := self._peek():
            is_plain = token.kind == "number" or (token.kind == "letters" and token.text not in _FUNCTIONS | SEPARATORS)
            is_plain |= token.kind == "command" and (token.text in ("pi", "frac") or token.text in _GREEK_NAMES)
            if not is_plain:
                return found
            found = apply(ex.multiply, found, _number_of(self._factor()))
        return found

    def _factor_without_power(self) -> Answer:
        found = self._primary()
        if self._sees("^") or self._sees("!"):
            raise Unread("a power of a function's brackets")
        return found

    def _argument(self) -> Expression:
        """An argument of a command: braces or one sign; a number without braces gives only its first digit."""
        token = self._peek()
        if token and token.kind == "number" and len(token.text) > 1:
            if not token.text.isdigit():
                raise Unread("an argument without braces")
            rest = token.text[1:]
            self._tokens[self._position] = FormulaToken(kind="number", text=rest, number=Fraction(rest))
            return constant(Fraction(token.text[0]))
        if token and token.kind == "letters" and len(token.text) > 1:
            self._tokens[self._position] = FormulaToken(kind="letters", text=token.text[1:])
            return _letter(token.text[0])
        return _number_of(self._primary())

    # Brackets

    def _bracketed(self, opening: str) -> Answer:
        bars, self._bars = self._bars, 0
        if opening == "\\{" and self._is_builder():
            self._take()
            self._take()
            items = self._items(end="\\}")
            self._expect("\\}")
            self._bars = bars
            return items.items[0] if len(items.items) == 1 else items
        closings = {"(": (")", "]"), "[": ("]", ")"), "\\{": ("\\}",), "{": ("}",)}[opening]
        items = self._items(end=closings[0])
        if opening == "{" and self._takes("over"):
            items = AnswerList(items=(apply(ex.divide, _number_of(items.items[0]), _number_of(self._sum())),))
        closing = self._take().text
        self._bars = bars
        if closing not in closings or (opening == "{" and not items.items):
            raise Unread("brackets")
        mixed = closing != closings[0]
        if len(items.items) == 1 and not mixed and opening in ("(", "{", "["):
            only = items.items[0]
            return replace(only, symbol="", unit="") if isinstance(only, Expression) and opening == "(" else only
        if mixed and len(items.items) != 2:
            raise Unread("an interval")
        braces = {"opening": "\\{", "closing": "\\}"} if opening == "{" else {"opening": opening, "closing": closing}
        return replace(items, **braces)

    def _is_builder(self) -> bool:
        return self._text_at(self._position + 1) in ("mid", "|", ":") and self._tokens[self._position].kind == "letters"

    def _matrix(self, name: str) -> Matrix:
        if name == "begin array":
            self._argument()
        rows, row = list[tuple[Expression, ...]](), list[Expression]()
        end = name.replace("begin", "end")
        while True:
            row.append(_number_of(self._sum()))
            sign = self._take().text
            if sign == "&":
                continue
            rows.append(tuple(row))
            row = []
            if sign == "row" and self._sees(end):
                sign = self._take().text
            if sign == end:
                break
            if sign != "row":
                raise Unread("a matrix")
        if len({len(one) for one in rows}) != 1 or name in ("begin vmatrix", "begin Vmatrix"):
            raise Unread("a matrix")
        return Matrix(rows=tuple(rows))

    # Units

    def _money(self) -> Unit | None:
        token = self._peek()
        if token and token.text in MONEY and token.kind in ("sign", "command"):
            self._position += 1
            return MONEY[token.text]
        return None

    def _begins_unit(self, position: int) -> bool:
        """True if the rest of an answer's part is a unit: a name, and nothing but powers, a slash and another name behind it."""
        token = self._tokens[position] if position < len(self._tokens) else None
        if token is None or token.kind not in ("words", "letters") or position == 0:
            return False
        return is_unit(token.text, is_word=token.kind == "words")

    def _with_unit(self, found: Answer) -> Answer:
        """The number with the unit that follows it."""
        if isinstance(found, Expression) and found.unit == "°":
            return Amount(number=apply(_degrees, found), unit=unit_of("°"))
        if not isinstance(found, Expression) or not self._begins_unit(self._position):
            return found
        unit = self._unit()
        if self._takes("/"):
            unit = unit.by(self._unit())
        return Amount(number=found, unit=unit)

    def _unit(self) -> Unit:
        if not self._begins_unit(self._position):
            raise Unread("a unit")
        unit = unit_of(self._take().text)
        if self._takes("^"):
            exponent = _integer(self._argument())
            if exponent is None:
                raise Unread("a power of a unit")
            unit = unit.to(exponent)
        return unit

    # Tokens

    def _peek(self) -> FormulaToken | None:
        return self._tokens[self._position] if self._position < len(self._tokens) else None

    def _text_at(self, position: int) -> str:
        return self._tokens[position].text if position < len(self._tokens) else ""

    def _is_equals(self, position: int) -> bool:
        return self._text_at(position) == "="

    def _was_number(self) -> bool:
        return self._position > 0 and self._tokens[self._position - 1].kind == "number"

    def _sees(self, text: str) -> bool:
        token = self._peek()
        return token is not None and token.text == text and token.kind in ("sign", "command")

    def _takes(self, text: str) -> bool:
        if not self._sees(text):
            return False
        self._position += 1
        return True

    def _take(self) -> FormulaToken:
        token = self._peek()
        if token is None:
            raise Unread("the end")
        self._position += 1
        return token

    def _expect(self, text: str) -> None:
        if not self._takes(text):
            raise Unread(f"no {text}")


def _degrees(radians: ex.Number) -> ex.Number:
    return ex.multiply(radians, 180 / ex.mp.pi)


def _letter(name: str) -> Expression:
    """A variable, or the constant that a letter denotes: e or i."""
    if name == "e":
        return Expression(value=lambda _: +ex.mp.e, has_numbers=True)
    return Expression(value=lambda _: ex.mp.mpc(0, 1), has_numbers=True) if name == "i" else variable(name)


def _number_of(answer: Answer) -> Expression:
    """The expression that an answer is. Raises Unread for any other."""
    if not isinstance(answer, Expression):
        raise Unread(type(answer).__name__)
    return answer


def _integer(found: Expression) -> int | None:
    """The value of a whole number, else None."""
    try:
        value = found.value({}) if not found.names else None
    except ex.Undefined:
        return None
    return int(value) if isinstance(value, Fraction) and value.denominator == 1 else None


def _in_degrees(number: Expression) -> Expression:
    return replace(apply(lambda value: ex.multiply(value, ex.mp.pi / 180), number), unit="°")


def _product(one: Answer, other: Answer) -> Answer:
    if isinstance(other, Matrix):
        return _scaled(_number_of(one), other)
    return apply(ex.multiply, _number_of(one), _number_of(other))


def _scaled(factor: Expression, matrix: Matrix) -> Matrix:
    return Matrix(rows=tuple(tuple(apply(ex.multiply, factor, entry) for entry in row) for row in matrix.rows))


def _expanded(answer: Answer) -> list[Answer]:
    """The answers that one with `\\pm` abbreviates."""
    parts = [answer] if isinstance(answer, Expression) else list(answer.parts) if isinstance(answer, Chain) else []
    names = {name for part in parts if isinstance(part, Expression) for name in part.names if name.startswith(PLUS_MINUS)}
    if not names:
        return [answer]
    name, found = min(names), list[Answer]()
    for sign in (Fraction(1), Fraction(-1)):
        made = [ex.bound(part, **{name: sign}) if isinstance(part, Expression) and name in part.names else part for part in parts]
        found += _expanded(Chain(parts=tuple(made), signs=answer.signs) if isinstance(answer, Chain) else made[0])
    return found
