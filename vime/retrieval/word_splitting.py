"""The words of passages and queries, split by one rule for every kind of index.

Texts are brought to one form first (NFKC, case folded), so that accents in signs of their own, full-width letters and cases make
no difference. Scripts that put no blanks between words (Chinese, Japanese, Thai, Lao, Khmer, Burmese) are split into characters
and pairs of neighbouring ones, as Lucene's CJKBigramFilter does with `outputUnigrams`: the pairs rank the passages of a query,
the characters find those of a query of one.
"""

import re
import unicodedata

RULE = 2
"""Version of the rule; an index that was built by another one is built anew."""
_NO_BLANKS = (
    "\u0e00-\u0eff"  # Thai, Lao
    "\u1000-\u109f"  # Burmese
    "\u1780-\u17ff"  # Khmer
    "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff"  # Japanese
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Chinese
)
_MARKS = "".join(character for character in map(chr, range(0x300, 0x1F000)) if unicodedata.category(character) in ("Mn", "Mc"))
"""Signs that belong to the letter before, as vowels do in Hindi; `\\w` leaves them out."""
_WORD = re.compile(rf"(?P<run>(?:(?=[\w{_MARKS}])[{_NO_BLANKS}])+)|(?:(?![{_NO_BLANKS}])[\w{_MARKS}])+")


def folded(text: str) -> str:
    """A text in the form in which texts are compared."""
    clean = text.encode(errors="replace").decode()  # half a surrogate pair has no UTF-8
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", clean).casefold())


def words_of(text: str) -> list[str]:
    """The words of a folded text, with repetitions, including words of one character, as numbers and names often are."""
    words: list[str] = []
    for found in _WORD.finditer(text):
        run = found["run"]
        words += [found[0]] if run is None else [*run, *(run[at : at + 2] for at in range(len(run) - 1))]
    return words
