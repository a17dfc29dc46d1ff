"""Verdicts about the pairs of `tools/grading_pairs.jsonl`, and what must hold for any text."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vime.grading.grade import grade
from vime.grading.judge import Judge
from vime.grading.maths_worker import compare

PAIRS = [json.loads(line) for line in (Path(__file__).parents[2] / "tools" / "grading_pairs.jsonl").read_text().splitlines()]
FORMULAS = [
    *("27", "0.5", r"\frac{1}{2}", "1e5", r"1.6 \times 10^{-19}", r"0.\overline{57}", r"\sqrt{2}", "x^2+1", r"x > 3", r"[0,1)"),
    *(r"\{1,2\}", "(1,2)", r"\begin{pmatrix}1\\2\end{pmatrix}", "3+4i", r"5\text{ cm}", r"\$5", r"30^\circ", r"10\%", r"2^{98}"),
]


def verdict_of(answer: str, reference: str) -> str:
    return "equal" if answer.strip() == reference.strip() else compare(answer, [reference])


@pytest.fixture(scope="module")
def verdicts() -> list[tuple[str, str, dict[str, str]]]:
    """The right verdict, ours, and the pair."""
    return [(pair["verdict"], verdict_of(pair["answer"], pair["reference"]), pair) for pair in PAIRS]


def test_the_pairs_are_many_of_every_kind_and_none_stands_there_twice():
    kinds = {pair["kind"] for pair in PAIRS}
    assert len(PAIRS) >= 300 and len({(pair["answer"], pair["reference"]) for pair in PAIRS}) == len(PAIRS)
    assert all(sum(pair["kind"] == kind for pair in PAIRS) >= 25 for kind in kinds)
    assert {pair["verdict"] for pair in PAIRS} == {"equal", "different", "undecided"}


def test_no_pair_that_is_not_equal_is_called_equal(verdicts: list[tuple[str, str, dict[str, str]]]):
    assert [pair for right, said, pair in verdicts if said == "equal" != right] == []


def test_at_most_two_of_a_hundred_equal_pairs_are_called_different_or_left_undecided(
    verdicts: list[tuple[str, str, dict[str, str]]],
):
    missed = [pair for right, said, pair in verdicts if right == "equal" != said]
    assert 50 * len(missed) <= sum(right == "equal" for right, _, _ in verdicts), missed


def test_what_is_no_formula_is_left_undecided(verdicts: list[tuple[str, str, dict[str, str]]]):
    assert [pair for right, said, pair in verdicts if right == "undecided" != said] == []


@pytest.mark.parametrize("formula", FORMULAS)
@pytest.mark.parametrize(
    "rest", [" +", r"\ldots", " (", r" \neq", "^", r"\frac", r" \foo", ", ", " thing", "}", " = ", "_", "|", "?"]
)
def test_a_formula_with_a_rest_that_cannot_be_read_equals_nothing_and_is_undecided(formula: str, rest: str):
    assert compare(formula + rest, [formula]) == compare(formula, [formula + rest]) == "undecided"


@pytest.mark.parametrize("formula", FORMULAS)
def test_a_formula_equals_itself_in_other_clothes(formula: str):
    for clothes in ("{}", "${}$", " {} ", r"\displaystyle {}", "{}."):
        assert compare(clothes.format(formula), [formula]) == compare(formula, [clothes.format(formula)]) == "equal"


@settings(max_examples=150, deadline=None)
@given(st.integers(-400, 400), st.integers(1, 10**9), st.integers(1, 10**9))
def test_numbers_of_any_size_are_equal_only_if_they_are(exponent: int, one: int, other: int):
    expected = "equal" if one == other else "different"
    assert compare(rf"{one} \times 10^{{{exponent}}}", [rf"{other} \cdot 10^{{{exponent}}}"]) == expected
    assert compare(f"{one}e{exponent}", [rf"{one} \times 10^{{{exponent}}}"]) == "equal"
    assert compare(rf"\frac{{{one}}}{{10^{{{abs(exponent)}}}}}", [rf"{one} \times 10^{{{-abs(exponent)}}}"]) == "equal"


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 10**6))
def test_repeating_decimals_are_their_fractions(above: int, below: int):
    whole, rest, digits, seen = above // below, above % below, "", dict[int, int]()
    while rest and rest not in seen and len(digits) < 60:
        seen[rest] = len(digits)
        digits, rest = digits + str(10 * rest // below), 10 * rest % below
    if rest not in seen:
        return
    text = rf"{whole}.{digits[: seen[rest]]}\overline{{{digits[seen[rest] :]}}}"
    assert compare(text, [rf"\frac{{{above}}}{{{below}}}"]) == "equal"
    assert compare(text, [rf"\frac{{{above + 1}}}{{{below}}}"]) == "different"


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet=r"0123456789xyabe+-*/^_=<>(){}[]|\,.;:!%$&' " + "½√π", max_size=25), st.sampled_from(FORMULAS))
def test_any_text_gets_a_verdict(text: str, formula: str):
    assert compare(text, [formula]) in ("equal", "different", "undecided")


@pytest.mark.parametrize(
    ("answer", "reference", "digits", "verdict"),
    [
        *(("0.333", r"\frac13", None, "different"), ("0.333", r"\frac13", 3, "equal"), ("0.333", r"\frac13", 4, "different")),
        *(("3.14", r"\pi", 3, "equal"), ("3.15", r"\pi", 3, "different"), ("66.7", r"\frac{200}{3}", 3, "equal")),
        ("1.4142135623", r"\sqrt2", None, "equal"),
    ],
)
def test_printed_digits_count_only_where_the_row_says_how_many(answer: str, reference: str, digits: int | None, verdict: str):
    assert compare(answer, [reference], digits=digits) == verdict


@pytest.mark.parametrize("answer", ["½", "five", r"\text{no solution}", "√2", "12 o'clock", "1 or more", r"\frac{1}{", "7 +"])
async def test_an_answer_that_is_no_formula_goes_to_the_judge_and_without_one_scores_0(answer: str):
    class Accepting(Judge):
        """A judge that accepts everything."""

        def __init__(self) -> None:
            """Asks no model."""

        async def decide(self, *, question: str, prediction: str, gold: list[str]) -> bool:
            return True

    reply = rf"<answer>{answer}</answer>"
    asked, alone = await grade("maths", reply, ["7.5"], judge=Accepting()), await grade("maths", reply, ["7.5"])
    assert (asked.score, asked.decided_by, alone.score, alone.decided_by) == (1.0, "judge", 0.0, "nobody")
