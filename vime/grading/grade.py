"""One entry to all graders: a kind of question, a reply and its references in, a `Grade` out.

    grade_ = await grade("maths", r"… so \\boxed{\\frac12}", ["0.5"])       # Grade(score=1.0, decided_by="rule", prediction=…)

Rules decide first; a judge, if there is one, is asked only about answers that they cannot decide.
"""

from dataclasses import dataclass

from vime.grading.answer import answer_of
from vime.grading.game24 import numbers_of, solves
from vime.grading.judge import Judge
from vime.grading.maths import Equality, equal
from vime.grading.multiple_choice import letter
from vime.grading.number import number
from vime.grading.qa import exact_match

KINDS = ("maths", "choice", "number", "game24", "qa")
MAX_REFERENCES = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class Grade:
    """A score, 0 or 1, with the answer that was graded and the source of the decision.

    `decided_by` is `rule`, `judge`, `limit` (a rule reached its time or size limit, the score is 0), or `nobody` (the rules could
    not decide and no judge did, the score is 0). Example: `Grade(score=1.0, decided_by="rule", prediction="27")`.
    """

    score: float
    decided_by: str
    prediction: str


async def grade(
    kind: str,
    prediction: str,
    gold: list[str],
    *,
    question: str = "",
    judge: Judge | None = None,
    judge_alone: bool = False,
    thinks: bool = False,
    digits: int | None = None,
) -> Grade:
    r"""Grades a whole reply or a bare answer; in a reply the answer is the last `\boxed{}` after the thinking, see `answer_of`.

    `thinks` says that the reply begins inside the model's thinking (`vime.thinking`). With `digits` formulas are equal if they
    agree when rounded to that number of significant digits. With `judge_alone` the judge decides about every answer, and the
    rules are not used. Raises ValueError for an unknown kind, and errors of the judge's server.
    """
    answer = answer_of(prediction, thinks=thinks)
    if not answer:
        return Grade(score=0.0, decided_by="rule", prediction="")
    verdict = Equality.undecided if judge_alone else await _decide(kind, answer, gold[:MAX_REFERENCES], question, digits)
    if verdict is not Equality.undecided:
        decided_by = "limit" if verdict is Equality.limit else "rule"
        return Grade(score=float(verdict is Equality.equal), decided_by=decided_by, prediction=answer)
    opinion = await judge.decide(question=question, prediction=answer, gold=gold) if judge is not None else None
    return Grade(score=float(opinion is True), decided_by="nobody" if opinion is None else "judge", prediction=answer)


async def _decide(kind: str, answer: str, gold: list[str], question: str, digits: int | None) -> Equality:
    match kind:
        case "maths":
            return await equal(answer, gold, digits=digits)
        case "number":
            return _numbers(answer, gold)
        case "choice":
            return _letters(answer, gold)
        case "game24":
            return _verdict(solves(answer, numbers_of(question, gold)))
        case "qa":
            return _same_words(answer, gold)
    raise ValueError(f"{kind!r} is no kind of grader: {', '.join(KINDS)}")


def _numbers(answer: str, gold: list[str]) -> Equality:
    value = number(answer)
    return Equality.undecided if value is None else _verdict(value in {number(reference) for reference in gold})


def _letters(answer: str, gold: list[str]) -> Equality:
    chosen, wanted = letter(answer), {letter(reference) for reference in gold} - {None}
    return Equality.undecided if chosen is None or not wanted else _verdict(chosen in wanted)


def _same_words(answer: str, gold: list[str]) -> Equality:
    """Equal after normalization, or undecided."""
    return Equality.equal if exact_match(answer, gold) else Equality.undecided


def _verdict(same: bool) -> Equality:
    return Equality.equal if same else Equality.different
