"""One entry to all graders: the right answer in many spellings scores 1, a plausible wrong one 0, and nothing takes for ever."""

from fractions import Fraction

import pytest

from vime.grading import maths
from vime.grading.answer import answer_of, has_box
from vime.grading.game24 import numbers_of, solves
from vime.grading.grade import grade
from vime.grading.multiple_choice import letter
from vime.grading.number import number


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        (r"so \boxed{Paris}, I think", "Paris"),
        (r"\boxed{7} and then \boxed{8}", "8"),
        (r"\boxed{7} and then \boxed{never closed", ""),
        (r"\boxed{7} or \boxed{\frac{1}{2}", ""),
        (r"7, so \boxed{", ""),
        (r"<think>Perhaps \boxed{7}. Wait, let me see", ""),
        ("<think>Perhaps it is 7", ""),
        ("<think>I guess <answer>Oslo</answer>, but", ""),
        (r"<think>a</think> \boxed{6}<think>b \boxed{7}", ""),
        (r"a</think> \boxed{6}", "6"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"<think>it could be \boxed{3}</think>It is 4", "It is 4"),
        (r"<think>\boxed{3}</think> \boxed {5}", "5"),
        ("Reasons.\n<answer>12 May</answer>", "12 May"),
        ("Reasons.\nFinal answer: 12", "12"),
        ("**The answer is 12**", "12"),
        ("27", "27"),
        (" \n", ""),
        ("", ""),
    ],
)
def test_the_answer_is_the_last_box_after_the_thinking_or_where_the_reply_ends(reply: str, answer: str):
    assert answer_of(reply) == answer


@pytest.mark.parametrize("kind", ["maths", "number", "choice", "game24", "qa"])
@pytest.mark.parametrize(
    "reply", ["<think>So\n{}", "<think>a</think><think>{}", "<think>\\boxed{{{}}}", "<think><answer>{}</answer>"]
)
async def test_a_reply_that_was_cut_in_its_thinking_has_no_answer_of_any_kind(kind: str, reply: str):
    answer = {"choice": "B", "game24": "(1+1+1)*8", "qa": "Oslo"}.get(kind, "7")
    gold = [answer]
    assert (await grade(kind, answer, gold)).score == 1.0
    found = await grade(kind, reply.format(answer), gold)
    assert (found.score, found.prediction) == (0.0, "")


async def test_where_the_prompt_opens_the_thinking_only_the_caller_knows_it():
    cut, whole = r"Perhaps \boxed{7}. Wait", r"Perhaps 6.</think>\boxed{7}"
    assert (await grade("maths", cut, ["7"], thinks=True)).score == 0.0
    assert (await grade("maths", whole, ["7"], thinks=True)).score == (await grade("maths", cut, ["7"])).score == 1.0
    assert not has_box(cut, thinks=True) and has_box(whole, thinks=True)


def test_a_box_in_the_thinking_is_no_box():
    assert has_box(r"\boxed{1}") and not has_box(r"<think>\boxed{1}</think> 1")


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("0.5", r"\frac{1}{2}"),
        (r"\frac12", "0.5"),
        (r"3\sqrt{2}", r"\sqrt{18}"),
        (r"10\%", "0.1"),
        (r"10\%", r"10\%"),
        ("10", r"10\%"),
        ("1,234", "1234"),
        ("1{,}234", "1234"),
        ("x=3", "3"),
        (r"\{1,2,3\}", r"\{3,2,1\}"),
        ("(1,2)", "(1, 2)"),
        ("033", "33"),
        ("(x+1)^2", "x^2+2x+1"),
        (r"\text{Monday}", r"\text{Monday}"),
    ],
)
async def test_equal_mathematics_scores_1(answer: str, gold: str):
    assert (await grade("maths", rf"\boxed{{{answer}}}", [gold])).score == 1.0


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("0.51", r"\frac{1}{2}"),
        (r"2\sqrt{2}", r"\sqrt{18}"),
        ("(2,1)", "(1,2)"),
        ("x^2+1", "(x+1)^2"),
        ("-33", "33"),
        ("33, 34", "33"),
        (r"10\%", "10"),
        ("10%", "10"),
        (r"\text{10\%}", "10"),
        (r"x\%", "x"),
    ],
)
async def test_different_mathematics_scores_0(answer: str, gold: str):
    result = await grade("maths", rf"\boxed{{{answer}}}", [gold])
    assert (result.score, result.decided_by) == (0.0, "rule")


@pytest.mark.parametrize(
    "answer",
    [
        "((9**9)**9)**9**9",
        "10^{10^{10}} - 10^{10^{10}} + 1",
        "(" * 200 + "1" + ")" * 200,
        r"\frac{1}{" * 40 + "2" + "}" * 40,
        r"\sqrt{" * 70 + "2" + "}" * 70,
        "1" * 499,
        "200000!",
        "{" * 100_000 + "}" * 100_000,
        r"\boxed{" * 150_000,
        "x" * 1_000_000,
        "(" * 1_000_000,
        "\x00\ud800",
    ],
    ids=lambda answer: f"{answer[:24].encode('unicode_escape').decode()} x{len(answer)}",
)
async def test_hostile_mathematics_ends_at_its_limit_with_0(answer: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(maths, "SECONDS", 1.0)
    result = await grade("maths", rf"\boxed{{{answer}}}", ["3"])
    assert result.score == 0.0 and result.decided_by in ("rule", "limit", "nobody")


@pytest.mark.parametrize("kind", ["choice", "number", "game24", "qa"])
@pytest.mark.parametrize(
    "reply", ["9**9**9**9", "(" * 1_000_000, "A" * 1_000_000, "<answer>" * 100_000, "-" * 190 + "1", "[" * 190, "1 " * 500_000]
)
async def test_hostile_replies_score_0_in_the_other_graders(kind: str, reply: str):
    gold = {"choice": "B", "number": "3", "game24": "8*3*1*1", "qa": "Paris"}[kind]
    assert (await grade(kind, reply, [gold])).score == 0.0


async def test_a_tower_of_powers_ends_at_its_limit_and_the_killed_worker_is_replaced(monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patched:
        patched.setattr(maths, "SECONDS", 1.0)
        first = await grade("maths", r"\boxed{9^{9^{9^{9}}}}", ["3"])
    second = await grade("maths", r"\boxed{\sqrt{4}x}", ["2x"])
    assert (first.score, first.decided_by, second.score, second.decided_by) == (0.0, "limit", 1.0, "rule")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("27", 27),
        ("-3.50", -3.5),
        (r"\$1,000", 1000),
        ("3/4", 0.75),
        ("45^\\circ", 45),
        ("12.", 12),
        ("50%", 0.5),
        ("1e3", 1000),
        ("2.5E+06", 2_500_000),
        ("-1e-3", -0.001),
    ],
)
def test_plain_numbers_are_read_exactly(text: str, value: float):
    assert number(text) == Fraction(str(value))


@pytest.mark.parametrize("text", ["", "x", "1/0", "12,34", "3 apples", "1e", "e5", "1e9999999", "--1", "1/2/3", "1..2", "٣x"])
def test_what_is_no_plain_number_is_none(text: str):
    assert number(text) is None


@pytest.mark.parametrize("text", ["B", "(B)", "b.", "B) Paris", "Option B", "answer: (B)", r"\text{B}", "**B**", "B: because"])
async def test_a_letter_is_read_in_many_spellings(text: str):
    assert letter(text) == "B"
    assert (await grade("choice", rf"\boxed{{{text}}}", ["B"])).score == 1.0
    assert (await grade("choice", rf"\boxed{{{text}}}", ["C"])).score == 0.0


async def test_a_sentence_is_no_letter_and_undecided():
    assert letter("A cat sat") is None
    assert (await grade("choice", "A cat sat", ["A"])).decided_by == "nobody"


@pytest.mark.parametrize(
    "text",
    [
        *("A, B", "A,B,C,D", "a, b.", "A and C", "A, and C", "A/B", "A & B", "(A)(B)", "(A) (B)", "(A), (B)", "A) and B)"),
        *("A) or (C)", "Option A, option B", r"\text{A, B}", r"\text{A}, \text{B}", "A, B are right", "A; B: both"),
    ],
)
async def test_several_letters_are_undecided(text: str):
    assert letter(text) is None
    assert (await grade("choice", rf"\boxed{{{text}}}", ["A"])).decided_by == "nobody"


@pytest.mark.parametrize(
    "text",
    [
        *("A. Because Bob", "A) the cat", "A: A cat sat", "A, a cat", "A, e.g. a cat", "A, I think", "A, not B", "A, C is wrong"),
        *("A) B cells", "(A) and nothing else", "A, because B.", "A, or rather nothing", "A) (because)"),
    ],
)
async def test_a_letter_with_words_after_it_is_one_letter(text: str):
    assert letter(text) == "A"
    assert (await grade("choice", rf"\boxed{{{text}}}", ["A"])).score == 1.0


async def test_without_a_letter_in_any_reference_nothing_is_decided():
    assert (await grade("choice", "B) Paris", ["Paris", "A, B"])).decided_by == "nobody"
    assert (await grade("choice", "B) Paris", ["Paris", "C"])).decided_by == "rule"


@pytest.mark.parametrize("text", ["(1+1+1)×8", "8*(1+1+1) = 24", r"(1+1+1) \times 8", r"\frac{8}{1} * (1+1+1)"])
def test_a_solution_of_24_in_many_spellings(text: str):
    assert solves(text, [1, 1, 1, 8]) is (r"\frac" not in text)  # the fraction uses a fourth 1


@pytest.mark.parametrize(
    "text",
    [
        "24",
        "8*3",
        "(1+1+1)*8*1",
        "(1+1+1)*8 = 25",
        "8**1*(1+1+1)",
        "8//1*3",
        "-8*-(1+1+1)",
        "(1+1+1)*8.0",
        "__import__('os')",
        "8/(1-1)*1",
    ],
)
def test_what_is_no_solution_of_24(text: str):
    assert not solves(text, [1, 1, 1, 8])


def test_fractions_in_24_are_exact():
    assert solves("8/(3-8/3)", [3, 3, 8, 8]) and not solves("8/(3-8/3)", [3, 3, 8, 9])


async def test_the_numbers_of_24_are_those_of_the_question():
    question = "Using the numbers [2, 3, 4, 1], create 24. Example: for [1, 2, 3, 4] …"
    assert (await grade("game24", "2*3*4*1", ["(3+1+2)*4"], question=question)).score == 1.0
    assert (await grade("game24", "24*1", ["(3+1+2)*4"], question=question)).score == 0.0


async def test_without_a_list_in_the_question_the_numbers_of_24_are_those_of_the_solution():
    assert numbers_of("Make 24.", ["(1+1+1)*8 = 24"]) == [1, 1, 1, 8] and numbers_of("Make 24.", []) == []
    assert (await grade("game24", "8*(1+1+1)", ["(1+1+1)*8 = 24"])).score == 1.0
    assert (await grade("game24", "24+8*(1-1)*1", ["(1+1+1)*8 = 24"])).score == 0.0


async def test_questions_are_decided_by_equal_words_and_left_to_a_judge_otherwise():
    assert (await grade("qa", r"\boxed{The Beatles!}", ["beatles"])).decided_by == "rule"
    other = await grade("qa", r"\boxed{John's band}", ["The Beatles"])
    assert (other.score, other.decided_by) == (0.0, "nobody")
    assert (await grade("qa", "the", ["A"])).score == 0.0
    assert (await grade("qa", "A", ["A"])).score == 1.0


async def test_nothing_said_is_wrong():
    assert (await grade("qa", r"\boxed{}", [""])).score == 0.0


async def test_an_unknown_kind_is_an_error():
    with pytest.raises(ValueError, match="no kind of grader"):
        await grade("poetry", "a", ["a"])
