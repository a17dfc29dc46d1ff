"""An answer is right or wrong, and two lists of calls are the same or not."""

import pytest

from agentic.toolorchestra.outcome import answer_is_right, normalize


@pytest.mark.parametrize(
    ("answer", "label", "right"),
    [
        ("Paris", "paris", True),
        ("  PARIS! ", "Paris", True),
        ("Café", "cafe", True),
        ("It is Ada Lovelace, of course.", "Ada Lovelace", True),
        ("14", "4", False),
        ("", "x", False),
        ("anything", "", False),
        ("!?", "x", False),
        ("yes " + "because " * 11, "yes", False),
        ("yes because", "yes", True),
        ("word " * 501 + "the one long label here", "the one long label here", False),
        ("\uff34\uff57\uff4f", "two", True),
    ],
)
def test_answers(answer: str, label: str, right: bool):
    assert answer_is_right(answer, label) is right


@pytest.mark.parametrize(
    ("answer", "label"),
    [
        ("-5", "5"),
        ("-$5", "$5"),
        ("0.5", "5"),
        ("1/4", "4"),
        ("3.14", "14"),
        ("x<3", "x>3"),
        ("x \u2264 3", "x \u2265 3"),
        ("10^-4", "10^4"),
        ("10^{-4}", "10^4"),
        ("A+B", "A-B"),
        ("x + 1", "x - 1"),
        ("(x-1)/(x+1)", "(x-1)(x+1)"),
        ("2*3", "2+3"),
        ("3-5", "5"),
        ("pages 3 \u2013 5", "5"),
        ("O+", "O"),
    ],
)
def test_numbers_and_formulas_are_compared_whole(answer: str, label: str):
    assert not answer_is_right(answer, label) and not answer_is_right(label, answer)


@pytest.mark.parametrize(
    ("answer", "label"),
    [
        ("1,234", "1234"),
        ("$1,234,567.50", "1234567.50"),
        ("\u22125", "-5"),
        ("Answer: -5", "-5"),
        ("It is 5.", "5"),
        ("- 5", "5"),
        ("**5**", "5"),
        ("$5", "5"),
        ("5%", "5"),
        ("5.0", "5"),
        ("0.5", ".5"),
        ("\u00bd", "1/2"),
        ("10^{-4}", "10^-4"),
        ("x + 1", "x+1"),
        ("x\u22653", "x >= 3"),
        ("x=3", "3"),
        ("7 + 12 = 19", "19"),
        ("well-known", "well known"),
        ("Covid-19", "covid 19"),
        ("5 km/h", "5 km h"),
        ("Paris - France", "Paris, France"),
        ("Paris -> Lyon", "Paris \u2192 Lyon"),
    ],
)
def test_other_spellings_of_the_same_words_numbers_and_formulas_agree(answer: str, label: str):
    assert answer_is_right(answer, label)


def test_a_sign_alone_is_no_word():
    assert [normalize(text) for text in ("+", " - ", "/", "*", "1,2, 3", "2020,300")] == ["", "", "", "", "1 2 3", "2020 300"]
