"""Cuts a formula, in LaTeX or as programs and people print it, into tokens; a character that belongs to none is an error."""

import re
from dataclasses import dataclass
from fractions import Fraction

from vime.grading.expression import Unread
from vime.grading.units import is_unit


@dataclass(frozen=True, kw_only=True, slots=True)
class FormulaToken:
    """A piece of a formula, for example `FormulaToken(kind="number", text="0.5", number=Fraction(1, 2))`.

    Kinds are number, letters, command (without its backslash), words (a text among formulas), and sign.
    """

    kind: str
    text: str
    number: Fraction = Fraction(0)
    is_decimal: bool = False
    after_space: bool = False


FONTS = {
    "text",
    "mathrm",
    "mathbf",
    "textbf",
    "textrm",
    "textit",
    "mathit",
    "mathsf",
    "mbox",
    "hbox",
    "boldsymbol",
    "operatorname",
}
FONTS |= {"boxed", "fbox", "textnormal", "rm", "bf"}
SEPARATORS = {"and", "or", "and/or"}
_SPACES = {
    ",",
    ";",
    ":",
    "!",
    " ",
    "quad",
    "qquad",
    "displaystyle",
    "textstyle",
    "limits",
    "left",
    "right",
    "thinspace",
    "enspace",
}
_SPACES |= {"big", "Big", "bigl", "bigr", "Bigl", "Bigr", "bigg", "biggl", "biggr", "middle", "(", ")", "[", "]"}
_SAME = {
    **{
        "dfrac": "frac",
        "tfrac": "frac",
        "cfrac": "frac",
        "dbinom": "binom",
        "tbinom": "binom",
        "leqslant": "le",
        "geqslant": "ge",
    },
    **{
        "leq": "le",
        "geq": "ge",
        "neq": "ne",
        "lt": "<",
        "gt": ">",
        "vert": "|",
        "lvert": "|",
        "rvert": "|",
        "varnothing": "emptyset",
    },
    **{"lbrace": "{", "rbrace": "}", "degree": "circ", "ast": "times", "star": "times", "backslash": "setminus", "colon": ":"},
    **{
        "arcsin": "asin",
        "arccos": "acos",
        "arctan": "atan",
        "lor": "or",
        "land": "and",
        "vee": "or",
        "wedge": "and",
        "Rightarrow": "?",
    },
}
_UNICODE = str.maketrans(
    {
        **{"\u2212": "-", "\u2013": "-", "\u00a0": " ", "\u2009": " ", "\u202f": " ", "'": "'", "\u2026": "\\ldots "},
        **{"×": "\\times ", "·": "\\cdot ", "⋅": "\\cdot ", "∙": "\\cdot ", "÷": "\\div ", "π": "\\pi ", "∞": "\\infty "},
        **{
            "≤": "\\le ",
            "≥": "\\ge ",
            "≠": "\\ne ",
            "°": "^\\circ ",
            "\u222a": "\\cup ",
            "∩": "\\cap ",
            "∈": "\\in ",
            "∅": "\\emptyset ",
        },
        **{
            "±": "\\pm ",
            "θ": "\\theta ",
            "\u03b1": "\\alpha ",
            "β": "\\beta ",
            "\u211d": "\\mathbb{R}",
            "²": "^{2}",
            "³": "^{3}",
        },
    }
)
_DIGITS = r"\d+\.\d+|\.\d+|\d+\.(?=\s*$)|\d+"
_GROUPED = r"\d{1,3}(?:(?:\{,\}|\\,|,\\!|\\!|\\;|{,\\!})\d{3})+(?:\.\d+)?(?!\d)"
_REPEATING = re.compile(
    r"(\d*)\.(\d*)(?:\\(?:overline|bar)\s*(?:\{(\d+)\}|(\d))|\((\d+)\)|\\dot\s*\{?(\d)\}?(?:(\d*)\\dot\s*\{?(\d)\}?)?)"
)
_NUMBER = re.compile(rf"({_GROUPED})|({_DIGITS})(?:[eE]([+-]?\d{{1,4}})(?!\d|\.\d|[A-Za-z_]))?")
_COMMAS = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?(?!\d)")
_EXPONENT = re.compile(r"[eE][+-]?\d")
_COMMAND = re.compile(r"\\([A-Za-z]+|.)", re.DOTALL)
_LETTERS = re.compile(r"[A-Za-z]+")
_TIMES = re.compile(r"\s*x\s*(?=10\s*(?:\^|\*\*))")
_PLAIN = re.compile(r"(?:[^A-Za-z]|(?<![A-Za-z])(?:[A-Za-z]|and|or|cm|pi)(?![A-Za-z]))*")
_SIGNS = ("**", "<=", ">=", "!=", "==")
_OPENING, _CLOSING = ("(", "[", "\\{"), (")", "]", "\\}")


def tokens_of(text: str) -> list[FormulaToken]:
    """The tokens of a formula. Raises Unread for characters that belong to no token."""
    text = text.strip()
    if len(text) > 1 and text.startswith("$") and text.endswith("$") and not text.endswith("\\$"):
        text = text.strip("$")
    if text.count("$") - text.count("\\$") > 1:
        text = re.sub(r"(?<!\\)\$", " ", text)
    found: list[FormulaToken] = []
    _read(text.translate(_UNICODE), found)
    if found and found[-1].text == ".":  # the end of a sentence
        found.pop()
    return found


def _read(text: str, found: list[FormulaToken]) -> None:
    position, spaced = 0, False
    while position < len(text):
        if text[position].isspace() or text[position] == "~":
            position, spaced = position + 1, True
            continue
        size = len(found)
        position = _next(text, position, found)
        if spaced and len(found) > size:
            first = found[size]
            found[size] = FormulaToken(
                kind=first.kind, text=first.text, number=first.number, is_decimal=first.is_decimal, after_space=True
            )
        spaced = len(found) == size


def _next(text: str, position: int, found: list[FormulaToken]) -> int:
    """Appends the token at a position, and returns where it ends."""
    if match := _REPEATING.match(text, position):
        found.append(_repeating(match))
    elif match := _number(text, position, found):
        if _EXPONENT.match(text, match.end()):
            raise Unread("a power of ten, or a product with e")
        found.append(_plain_number(match))
    elif text[position] == "\\":
        return _command(text, position, found)
    elif found and found[-1].kind == "number" and (match := _TIMES.match(text, position)):
        found.append(FormulaToken(kind="command", text="times"))
    elif match := _LETTERS.match(text, position):
        found.append(FormulaToken(kind="letters", text=match.group()))
    else:
        sign = next((sign for sign in _SIGNS if text.startswith(sign, position)), text[position])
        if not sign.isascii() and sign not in "€£¥":
            raise Unread(sign)
        known = {"**": "^", "<=": "le", ">=": "ge", "!=": "ne", "==": "="}.get(sign, sign)
        found.append(FormulaToken(kind="command" if known in ("le", "ge", "ne") else "sign", text=known))
        return position + len(sign)
    return match.end()


def _number(text: str, position: int, found: list[FormulaToken]) -> "re.Match[str] | None":
    """A number. Commas between thousands belong to it only outside brackets; inside, they separate values."""
    depth = sum(token.text in _OPENING for token in found) - sum(token.text in _CLOSING for token in found)
    commas = _COMMAS.match(text, position) if depth <= 0 else None
    return commas or _NUMBER.match(text, position)


def _plain_number(match: "re.Match[str]") -> FormulaToken:
    if match.re is _COMMAS or match.group(1):
        digits, exponent = re.sub(r"[^\d.]", "", match.group()), None
    else:
        digits, exponent = match.group(2), match.group(3)
    value = Fraction(digits.rstrip(".")) * Fraction(10) ** int(exponent or 0)
    is_decimal = "." in digits.rstrip(".") or exponent is not None
    return FormulaToken(kind="number", text=match.group(), number=value, is_decimal=is_decimal)


def _repeating(match: "re.Match[str]") -> FormulaToken:
    whole, fixed, braced, single, bracketed, first, middle, last = match.groups()
    period = braced or single or bracketed or f"{first}{middle or ''}{last or ''}"
    value = Fraction(int(f"{whole}{fixed}" or "0"), 10 ** len(fixed))
    value += Fraction(int(period), (10 ** len(period) - 1) * 10 ** len(fixed))
    return FormulaToken(kind="number", text=match.group(), number=value)


def _command(text: str, position: int, found: list[FormulaToken]) -> int:
    match = _COMMAND.match(text, position)
    if match is None:
        raise Unread("\\")
    name, end = match.group(1), match.end()
    name = _SAME.get(name, name)
    if name == "\\":
        found.append(FormulaToken(kind="command", text="row"))
    elif name in ("left", "right") and text[end : end + 1] == ".":
        raise Unread("a bracket that is not shown")
    elif name in _SPACES:
        pass
    elif name in FONTS:
        return _font(text, end, found)
    elif name == "mathbb" or name in ("begin", "end"):
        content, end = group(text, end)
        found.append(FormulaToken(kind="command", text=f"{name} {content.strip()}"))
    elif name in ("{", "}"):
        found.append(FormulaToken(kind="sign", text="\\" + name))
    elif name in ("$", "%", "#", "<", ">", "|", ":"):
        found.append(FormulaToken(kind="sign", text="%" if name == "%" else "\\$" if name == "$" else name))
    elif name in SEPARATORS:
        found.append(FormulaToken(kind="words", text=name))
    elif name.isalpha():
        found.append(FormulaToken(kind="command", text=name))
    else:
        raise Unread(name)
    return end


def _font(text: str, position: int, found: list[FormulaToken]) -> int:
    """Reads the content of `\\text{…}` and the like: a formula, or words."""
    content, end = group(text, position)
    bare = content.strip()
    word = bare.strip(", ").lower()
    if word in SEPARATORS:
        found.append(FormulaToken(kind="words", text=word))
    elif found and is_unit(bare, is_word=True):
        found.append(FormulaToken(kind="words", text=bare))
    elif len(bare) > 1 and _PLAIN.fullmatch(bare) and not (bare.isalpha() and bare.islower()):
        _read(content, found)
    elif bare.isdigit():
        found.append(FormulaToken(kind="number", text=bare, number=Fraction(bare)))
    elif bare:
        found.append(FormulaToken(kind="words", text=bare))
    return end


def group(text: str, position: int) -> tuple[str, int]:
    """The content of the braces at a position, and where they end."""
    while text[position : position + 1].isspace():
        position += 1
    if text[position : position + 1] != "{":
        raise Unread("no braces")
    depth = 0
    for end in range(position, len(text)):
        if text[end] in "{}" and text[end - 1] != "\\":
            depth += 1 if text[end] == "{" else -1
        if depth == 0:
            return text[position + 1 : end], end + 1
    raise Unread("braces that are not closed")
