"""Question answering scores on a table checked by hand, and on strings that occur in no real answer.

A row is: prediction, reference, its normal form, exact match, SQuAD's F1, HotpotQA's F1, gold in prediction, sub_em with the
guard, sub_em without. The published normalisation is lower case, then no ASCII punctuation, then no articles, then single spaces.
"""

import random
import signal
import string
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

from agentic.memagent.reward import score
from vime.grading.boxed import boxed_equal, last_boxed, strip_string
from vime.grading.qa import (
    exact_match,
    f1,
    gold_in_prediction,
    hotpotqa_f1,
    normalize,
    string_match_all,
    string_match_part,
    substring_match,
    unguarded_substring_match,
)

CASES = [
    # equal up to what normalisation removes
    ("Paris", "Paris", "paris", 1, 1, 1, 1, 1, 1),
    ("paris", "PARIS", "paris", 1, 1, 1, 1, 1, 1),
    ("Paris.", "Paris", "paris", 1, 1, 1, 1, 1, 1),
    ("the Beatles", "Beatles", "beatles", 1, 1, 1, 1, 1, 1),
    ("The Beatles", "the beatles!", "beatles", 1, 1, 1, 1, 1, 1),
    ("An apple", "apple", "apple", 1, 1, 1, 1, 1, 1),
    ("a  b   c", "b c", "b c", 1, 1, 1, 1, 1, 1),
    ("  New\tYork\n", "New York", "new york", 1, 1, 1, 1, 1, 1),
    ("U.S.A.", "USA", "usa", 1, 1, 1, 1, 1, 1),
    ("it's", "its", "its", 1, 1, 1, 1, 1, 1),
    ("1,234", "1234", "1234", 1, 1, 1, 1, 1, 1),
    ("$5.00", "500", "500", 1, 1, 1, 1, 1, 1),
    ("(Bill) Murray", "Bill Murray", "bill murray", 1, 1, 1, 1, 1, 1),
    ('"Shirley Temple"', "Shirley Temple", "shirley temple", 1, 1, 1, 1, 1, 1),
    ("Eiffel-Tower", "eiffeltower", "eiffeltower", 1, 1, 1, 1, 1, 1),
    ("rock_and_roll", "rockandroll", "rockandroll", 1, 1, 1, 1, 1, 1),
    ("AC/DC", "acdc", "acdc", 1, 1, 1, 1, 1, 1),
    ("the the the end", "end", "end", 1, 1, 1, 1, 1, 1),
    ("yes", "Yes.", "yes", 1, 1, 1, 1, 1, 1),
    ("NO", "no", "no", 1, 1, 1, 1, 1, 1),
    # articles are words: inside others they stay, and after punctuation is gone
    ("theatre", "atre", "theatre", 0, 0, 0, 1, 1, 1),
    ("banana", "nana", "banana", 0, 0, 0, 1, 1, 1),
    ("a.", "Paris", "a", 0, 0, 0, 0, 0, 1),
    ("a-ha", "aha", "aha", 1, 1, 1, 1, 1, 1),
    ("The-Who", "thewho", "thewho", 1, 1, 1, 1, 1, 1),
    ("A Tribe Called Quest", "Tribe Called Quest", "tribe called quest", 1, 1, 1, 1, 1, 1),
    ("vitamin A", "vitamin", "vitamin", 1, 1, 1, 1, 1, 1),
    ("A & E", "E", "e", 1, 1, 1, 1, 1, 1),
    # signs outside ASCII are not punctuation
    ("Saint–Denis", "SaintDenis", "saint–denis", 0, 0, 0, 0, 0, 0),
    ("“Paris”", "Paris", "“paris”", 0, 0, 0, 1, 1, 1),
    ("café", "cafe", "café", 0, 0, 0, 0, 0, 0),
    ("ÉCOLE", "école", "école", 1, 1, 1, 1, 1, 1),
    ("東京", "東京", "東京", 1, 1, 1, 1, 1, 1),
    ("東京都", "東京", "東京都", 0, 0, 0, 1, 1, 1),
    ("new\u00a0york", "new york", "new york", 1, 1, 1, 1, 1, 1),
    ("straße", "STRASSE", "straße", 0, 0, 0, 0, 0, 0),
    # a part of the words
    ("the big cat", "big dog", "big cat", 0, 0.5, 0.5, 0, 0, 0),
    ("Paris, France", "Paris", "paris france", 0, 2 / 3, 2 / 3, 1, 1, 1),
    ("Paris", "Paris, France", "paris", 0, 2 / 3, 2 / 3, 0, 1, 1),
    ("It is Paris", "Paris", "it is paris", 0, 0.5, 0.5, 1, 1, 1),
    ("Barack Hussein Obama", "Barack Obama", "barack hussein obama", 0, 0.8, 0.8, 0, 0, 0),
    ("Obama Barack", "Barack Obama", "obama barack", 0, 1, 1, 0, 0, 0),
    ("cat cat cat", "cat", "cat cat cat", 0, 0.5, 0.5, 1, 1, 1),
    ("cat cat", "cat cat dog", "cat cat", 0, 0.8, 0.8, 0, 1, 1),
    ("from 1986 to 2013", "1986 to 2013", "from 1986 to 2013", 0, 6 / 7, 6 / 7, 1, 1, 1),
    ("1986-2013", "1986 to 2013", "19862013", 0, 0, 0, 0, 0, 0),
    ("Rome", "Paris", "rome", 0, 0, 0, 0, 0, 0),
    ("Parisian", "Paris", "parisian", 0, 0, 0, 1, 1, 1),
    ("Par", "Paris", "par", 0, 0, 0, 0, 1, 1),
    ("not Paris", "Paris", "not paris", 0, 2 / 3, 2 / 3, 1, 1, 1),
    # yes and no share no credit in HotpotQA
    ("yes", "no", "yes", 0, 0, 0, 0, 0, 0),
    ("yes it is", "yes", "yes it is", 0, 0.5, 0, 1, 1, 1),
    ("yes", "yes it is", "yes", 0, 0.5, 0, 0, 1, 1),
    ("no", "Norway", "no", 0, 0, 0, 0, 1, 1),
    ("no answer", "noanswer", "no answer", 0, 0, 0, 0, 0, 0),
    ("noanswer", "noanswer", "noanswer", 1, 1, 1, 1, 1, 1),
    ("know nothing", "no", "know nothing", 0, 0, 0, 1, 1, 1),
    # nothing, and what the published code makes nothing: it stays as it is
    ("", "Paris", "", 0, 0, 0, 0, 0, 1),
    ("   ", "Paris", "", 0, 0, 0, 0, 0, 1),
    ("...", "Paris", "...", 0, 0, 0, 0, 0, 1),
    ("the", "Paris", "the", 0, 0, 0, 0, 0, 1),
    ("A", "Paris", "a", 0, 0, 0, 0, 0, 1),
    ("An a the.", "Paris", "an a the", 0, 0, 0, 0, 0, 1),
    ("", "", "", 1, 1, 0, 0, 0, 1),
    ("The", "A", "the", 0, 0, 0, 0, 0, 1),
    ("", "A", "", 0, 0, 0, 0, 0, 1),
    ("a", "A", "a", 1, 1, 1, 1, 1, 1),
    ("B", "A", "b", 0, 0, 0, 0, 0, 1),
    ("the the!", "The The", "the the", 1, 1, 1, 1, 1, 1),
    ("the", "The The", "the", 0, 2 / 3, 2 / 3, 0, 0, 1),
    ("!!!", "!!!", "!!!", 1, 1, 1, 1, 1, 1),
    ("!!!", "?", "!!!", 0, 0, 0, 0, 0, 1),
    ("Banana", "A", "banana", 0, 0, 0, 0, 0, 1),
    ("Paris", "", "paris", 0, 0, 0, 0, 0, 1),
    ("Paris", "the", "paris", 0, 0, 0, 0, 0, 1),
    # one letter
    ("i", "Paris", "i", 0, 0, 0, 0, 1, 1),
    ("x", "Paris", "x", 0, 0, 0, 0, 0, 0),
    ("7", "1977", "7", 0, 0, 0, 0, 1, 1),
    ("B", "b", "b", 1, 1, 1, 1, 1, 1),
    ("C.", "C", "c", 1, 1, 1, 1, 1, 1),
    ("\u0130", "i", "i\u0307", 0, 0, 0, 1, 1, 1),
]


def test_the_table_is_as_long_as_it_should_be() -> None:
    assert len(CASES) >= 60


@pytest.mark.parametrize(("prediction", "reference", "normal", "em", "squad", "hotpot", "gold", "guarded", "unguarded"), CASES)
def test_scores_are_those_of_the_published_code(
    prediction: str,
    reference: str,
    normal: str,
    em: float,
    squad: float,
    hotpot: float,
    gold: float,
    guarded: float,
    unguarded: float,
):
    assert normalize(prediction) == normal
    found = [
        exact_match(prediction, [reference]),
        f1(prediction, [reference]),
        hotpotqa_f1(prediction, [reference]),
        gold_in_prediction(prediction, [reference]),
        substring_match(prediction, [reference]),
        unguarded_substring_match(prediction, [reference]),
    ]
    assert found == pytest.approx([em, squad, hotpot, gold, guarded, unguarded])


def test_the_best_reference_counts() -> None:
    references = ["Rome", "Paris", "Paris, France"]
    assert exact_match("paris", references) == f1("paris", references) == hotpotqa_f1("paris", references) == 1.0
    assert f1("Rome Italy Europe", references) == pytest.approx(0.5)
    for function in (exact_match, f1, hotpotqa_f1, gold_in_prediction, substring_match, unguarded_substring_match):
        assert function("Paris", []) == 0.0


def test_ruler_matches_strings_in_any_case_without_normalising() -> None:
    assert string_match_all("The numbers are 12, 34.", ["12", "34", "56"]) == pytest.approx(2 / 3)
    assert string_match_all("x", []) == 0.0
    assert string_match_part("it is PARIS", ["Rome", "paris"]) == 1.0
    assert string_match_part("St Denis", ["St. Denis"]) == 0.0


PIECES = [
    *(
        "\\boxed{",
        "\\boxed",
        "\\fbox{",
        "{",
        "}",
        "}}",
        "\\",
        "\\\\",
        "\\frac{1}{2}",
        "tfrac",
        "\\left(",
        "^{\\circ}",
        "$",
        "\\$",
    ),
    *(
        " ",
        "\n",
        "\t",
        "\u00a0",
        "\u2028",
        "a",
        "an",
        "the",
        "The",
        "yes",
        "noanswer",
        "Paris",
        "no",
        ".",
        " .",
        "{.",
        ",",
        "-",
        "_",
    ),
    *(
        "\x00",
        "\x1b",
        "\ud800",
        "é",
        "e\u0301",
        "ß",
        "\u0130",
        "東京",
        "🙂",
        "👨‍👩‍👧",
        "\u202e",
        "\ufeff",
        "\U0001d513",
        "ﬁ",
        "٣",
        "0",
        "12",
        "<|im_end|>",
    ),
]
MAX_PIECES = 40
NUM_STRINGS = 12_000
HANGS_SECONDS = 20


def strings(seed: int) -> Iterator[str]:
    """Random texts: pieces of answers put together, any characters, and a few very long ones."""
    chance = random.Random(seed)
    for number in range(NUM_STRINGS):
        if number % 3 == 0:
            yield "".join(chr(chance.randrange(0x110000)) for _ in range(chance.randrange(MAX_PIECES)))
        elif number % 3 == 1:
            yield "".join(chance.choices(PIECES, k=chance.randrange(MAX_PIECES)))
        else:
            yield "".join(chance.choices(string.printable, k=chance.randrange(MAX_PIECES)))
    for piece in PIECES:
        yield piece * 20_000


@contextmanager
def stopped_if_it_hangs() -> Iterator[None]:
    """Ends what runs away on one string, for example a regular expression that tries every way to match."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError("a grader hangs")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(HANGS_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def check(prediction: str, reference: str) -> None:
    """All scores of one answer are numbers from 0 to 1 that agree with each other."""
    references = [reference, "Paris"]
    functions: list[Callable[[str, list[str]], float]] = [exact_match, f1, hotpotqa_f1, gold_in_prediction, substring_match]
    functions += [unguarded_substring_match, string_match_all, string_match_part]
    scores = {function.__name__: function(prediction, references) for function in functions}
    assert all(0.0 <= value <= 1.0 for value in scores.values()), (prediction, scores)
    assert scores["gold_in_prediction"] <= scores["substring_match"] <= scores["unguarded_substring_match"], (prediction, scores)
    assert scores["hotpotqa_f1"] <= scores["f1"], (prediction, scores)
    assert normalize(normalize(prediction)) == normalize(prediction) or any(c.isupper() for c in normalize(prediction)), (
        prediction
    )
    box = last_boxed(prediction)
    assert box is None or box in prediction
    strip_string(prediction)
    metrics = score(prediction, references).metrics
    assert metrics["strict"] == float(boxed_equal(prediction, references))


def test_twelve_thousand_strange_strings_are_scored_and_none_takes_for_ever() -> None:
    tested = 0
    for number, prediction in enumerate(strings(seed=5)):
        with stopped_if_it_hangs():
            check(prediction, PIECES[number % len(PIECES)])
        tested += 1
    assert tested >= 10_000
