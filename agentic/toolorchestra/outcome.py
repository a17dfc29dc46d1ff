"""Compares an answer with its label word by word."""

import re
import unicodedata

MAX_ANSWER_WORDS = 500
"""Longest answer that can be correct, as in ToolOrchestra's published evaluation."""
SHORT_LABEL_WORDS, MAX_TIMES_LONGER = 3, 10
_SIGNS = str.maketrans(
    {"\u2010": "-", "\u2013": "-", "\u2212": "-", "\u2044": "/", "\u00f7": "/", "\u00d7": "*", "\u2264": "<=", "\u2265": ">="}
)
_TWO_LETTERS = r"[^\W\d_]{2}"
_DROPPED = re.compile(
    r"""(?<=\d)(?<!\d{4}),(?=\d{3}(?!\d))           # 1,234 is 1234
    | (?<=\d)\.0+(?!\.?\d)                          # 5.0 is 5
    | (?<![\w.])0(?=\.\d*[1-9])                     # 0.5 is .5
    | (?<=-)[$€£](?=\.?\d)                          # -$5 is -5
    | (?<=\^)[({](?=-?\w+[)}])                      # 10^{-4} is 10^-4
    | (?<=[\w)\]}])[ ](?=[-+*/^][ ][\w({\[])        # x + 1 is x+1
    | (?<=[\w)\]}][ ][-+*/^])[ ](?=[\w({\[])""",
    re.VERBOSE,
)
_KEPT = re.compile(
    rf"""(?<![^\W\d])(?<!\.)\.(?=\d)                                           # 3.14, .5
    | (?<!{_TWO_LETTERS})(?<!-)[-/](?=-?(?:\.?\d|[({{\[]|(?!{_TWO_LETTERS})\w)) # -5, 1/4, x-y; not well-known, km/h
    | (?<=[\w)\]}}])[*^](?=-?[\w.({{\[])                                       # 2*x, 10^-4; not **bold**
    | (?<=[\w+)\]}}])\+                                                        # a+b, O+
    | [\u221a\u00b1](?=\w)                                                     # a root, plus or minus
    | < | =(?!>) | (?<![-=])>""",
    re.VERBOSE,
)


def normalize(text: str) -> str:
    """The text in the form in which words are compared: Unicode-normalized, in lower case, with spaces for punctuation.

    Numbers stay whole (`-5`, `3.14`, `1/4`; `1,234` becomes `1234`), and so do formulas (`x + 1` becomes `x+1`); `<`, `=` and `>`
    are words. A hyphen or slash next to two letters is punctuation (`well-known`, `km/h`), and so are brackets, `$` and `%`: "5%"
    becomes "5".
    """
    plain = "".join(sign for sign in unicodedata.normalize("NFKD", text).lower() if not unicodedata.combining(sign))
    plain = _DROPPED.sub("", plain.translate(_SIGNS))
    kept = {match.start() for match in _KEPT.finditer(plain)}
    words = [
        " " if unicodedata.category(sign)[0] in "PS" and place not in kept else f" {sign} " if sign in "<=>" else sign
        for place, sign in enumerate(plain)
    ]
    return " ".join("".join(words).split())


def answer_is_right(answer: str, label: str) -> bool:
    """True if the answer equals the label or contains its words in order; a short label must not make up less than a tenth of it.

    slime-agentic searches for the label's characters, which finds "4" in "14". Here whole words, numbers and formulas of
    `normalize` must agree: "14", "-4" and "1/4" do not contain "4". An empty answer and one of more than 500 words are wrong.
    """
    ours, wanted = normalize(answer).split(), normalize(label).split()
    if not ours or not wanted or len(ours) > MAX_ANSWER_WORDS:
        return False
    if ours == wanted:
        return True
    if len(wanted) <= SHORT_LABEL_WORDS and len(ours) > MAX_TIMES_LONGER * len(wanted):
        return False
    return any(ours[start : start + len(wanted)] == wanted for start in range(len(ours) - len(wanted) + 1))
