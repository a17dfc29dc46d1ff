"""Strict boxes and lenient substrings, with the cases that public graders get wrong."""

import pytest

from vime.grading.boxed import boxed_equal, last_boxed
from vime.grading.qa import exact_match, f1, normalize, substring_match


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"so \boxed{Paris}", "Paris"),
        (r"\boxed{a} then \boxed{b}", "b"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\fbox{x}", "x"),
        (r"\boxed {x}", "x"),
        (r"\boxed 7$ done", "7"),
        (r"\boxed{never closed", None),
        ("no box", None),
        ("", None),
    ],
)
def test_the_last_balanced_box_is_found(text: str, expected: str | None):
    assert last_boxed(text) == expected


def test_strict_equality_ignores_case_and_spaces_only():
    assert boxed_equal(r"\boxed{New  York}", ["new york"])
    assert not boxed_equal(r"\boxed{New York City}", ["new york"])
    assert not boxed_equal("new york", ["new york"])


def test_a_box_before_the_last_300_characters_does_not_count():
    assert not boxed_equal(r"\boxed{x}" + " " * 300, ["x"])


def test_an_empty_prediction_scores_nothing():
    assert substring_match("", ["gold"]) == 0.0
    assert substring_match("the", ["gold"]) == 0.0
    assert boxed_equal(r"\boxed{}", ["gold"]) is False


def test_the_substring_match_is_bidirectional():
    assert substring_match("It is Paris, France", ["Paris"]) == 1.0
    assert substring_match("Paris", ["Paris, France"]) == 1.0
    assert substring_match("Rome", ["Paris"]) == 0.0


def test_squad_normalisation_drops_case_articles_and_punctuation():
    assert normalize("The  Eiffel-Tower, a!") == "eiffeltower"
    assert exact_match("the Beatles", ["Beatles."]) == 1.0


def test_f1_counts_shared_tokens():
    assert f1("the big cat", ["big dog"]) == pytest.approx(0.5)
    assert f1("", ["x"]) == 0.0
