"""The prompt: examples of solved problems, whose form the model continues."""

from dataclasses import dataclass

CALCULATION, ANSWER = "Calculation:", "Answer:"


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """A solved problem. Example: `Example(problem="tom has …", calculations=(("3 + 4", "7"),), answer="7")`."""

    problem: str
    calculations: tuple[tuple[str, str], ...]
    """Expressions and their values."""
    answer: str


EXAMPLES = (
    Example(
        problem="tom has 3 apples and buys 4 more . how many apples does he have ?", calculations=(("3 + 4", "7"),), answer="7"
    ),
    Example(
        problem="a box of 6 pens costs 18 dollars . how much does one pen cost ?", calculations=(("18 / 6", "3"),), answer="3"
    ),
    Example(
        problem="ann had 20 nuts , ate 5 and shared the rest among 3 friends . how many nuts did each friend get ?",
        calculations=(("20 - 5", "15"), ("15 / 3", "5")),
        answer="5",
    ),
)


def prompt_of(question: str, *, calculates: bool) -> str:
    """The examples and the problem; without calculations the answer follows the problem at once."""
    parts: list[str] = []
    for example in EXAMPLES:
        parts.append(f"Problem: {example.problem}\n")
        parts += [f"{CALCULATION} {left} = {value}\n" for left, value in example.calculations if calculates]
        parts.append(f"{ANSWER} {example.answer}\n\n")
    return "".join(parts) + f"Problem: {question.strip()}\n"
