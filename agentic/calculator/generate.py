"""The rollout of word problems: the model writes an expression, a calculator its value, and so on until the model answers.

    Problem: ann had 20 nuts , ate 5 …     given
    Calculation: 20 - 5 =                  sampled and trained
     15                                    given by the calculator, masked
    Calculation: 15 / 3 =                  sampled and trained
     5                                     given
    Answer: 5                              sampled and trained

A line ends with `=` or with its end. All lines are one token sequence, in which nothing is tokenized twice.
"""

import re
from fractions import Fraction
from typing import Any

from agentic.calculator.config import CalculatorConfig
from agentic.calculator.prompts import ANSWER, CALCULATION, prompt_of
from vime.grading.arithmetic import computed
from vime.rollout.context import Context, Sampling
from vime.types import Sample, StopReason

STOPS = ("=", "\n")
DIGITS = 6
"""Significant digits of a value that is no whole number."""
_SIGNS = str.maketrans({"x": "*", "×": "*", "÷": "/"})
_LINE = re.compile(rf"\s*({CALCULATION}|{ANSWER})\s*([^=\n]*)(=?)")


async def generate(context: Context, sample: Sample, sampling: Sampling) -> Sample:
    """One rollout with at most `method.max_calculations` calculations."""
    return await play(context, sample, max_calculations=CalculatorConfig.of(context.config).max_calculations)


async def single_turn(context: Context, sample: Sample, sampling: Sampling) -> Sample:
    """The baseline: the answer at once, after the same examples without their calculations."""
    return await play(context, sample, max_calculations=0)


async def play(context: Context, sample: Sample, *, max_calculations: int) -> Sample:
    """Alternates lines and values; `values` and `answer` of the sample are what was computed and answered."""
    method, model = CalculatorConfig.of(context.config), context.models["actor"]
    talk = model.conversation(prompt_of(sample.question, calculates=max_calculations > 0))
    reason, about = StopReason.TURN_LIMIT, dict[str, Any](values=[], answer=None)
    for number in range(max_calculations + 1):
        turn = await talk.reply(max_tokens=method.max_turn_tokens, stop=STOPS)
        kind, content = line_of(turn.text)
        if kind != CALCULATION:
            about["answer"] = content if kind == ANSWER else None
            reason = StopReason.ANSWERED if kind == ANSWER else StopReason.MALFORMED
            break
        try:
            value = shown(computed(content)[0])
        except ValueError:
            reason = StopReason.MALFORMED
            break
        about["values"].append(value)
        if number < max_calculations:
            talk.add(f" {value}\n")
    (result,) = context.samples(sample, **about)
    result.stop_reason = reason
    return result


def line_of(text: str) -> tuple[str | None, str]:
    """What a line is, and what follows the name: an expression that ends with `=`, or an answer; None if it is neither."""
    found = _LINE.match(text)
    if found is None or (found[1] == CALCULATION) != bool(found[3]) or not found[2].strip():
        return None, ""
    content = found[2].strip()
    return found[1], content.translate(_SIGNS) if found[1] == CALCULATION else content


def shown(value: Fraction) -> str:
    """A value as the calculator shows it. Example: `shown(Fraction(9, 2))` is "4.5"."""
    return str(value) if value.denominator == 1 else f"{float(value):.{DIGITS}g}"
