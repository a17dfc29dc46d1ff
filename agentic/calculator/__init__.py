"""Word problems: a pretrained language model reads a problem, lets a calculator compute, and answers.

    Problem: ann had 20 nuts , ate 5 …     given, after three examples
    Calculation: 20 - 5 =                  sampled and trained
     15                                    given by the calculator, masked
    Calculation: 15 / 3 =                  sampled and trained
     5                                     given
    Answer: 5                              sampled and trained; the reward is 1 for the right number

A reply is a line, which ends with `=` or a line break. All lines are one token sequence, in which nothing is tokenized twice.
"""

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from hydra.core.config_store import ConfigStore

from vime.config import MethodConfig, RunConfig
from vime.config.ranges import Count, Natural
from vime.errors import Problem
from vime.grading.arithmetic import computed
from vime.grading.number import number
from vime.types import Reward, Sample, Sampling, StopReason

if TYPE_CHECKING:
    from vime.rollout.context import Context

CALCULATION, ANSWER, STOPS = "Calculation:", "Answer:", ("=", "\n")
LINE, SIGNS = re.compile(rf"\s*({CALCULATION}|{ANSWER})\s*([^=\n]*)(=?)"), str.maketrans({"x": "*", "×": "*", "÷": "/"})
EXAMPLES = (
    "Problem: tom has 3 apples and buys 4 more . how many apples does he have ?\n"
    "Calculation: 3 + 4 = 7\nAnswer: 7\n\n"
    "Problem: a box of 6 pens costs 18 dollars . how much does one pen cost ?\n"
    "Calculation: 18 / 6 = 3\nAnswer: 3\n\n"
    "Problem: ann had 20 nuts , ate 5 and shared the rest among 3 friends . how many nuts did each friend get ?\n"
    "Calculation: 20 - 5 = 15\nCalculation: 15 / 3 = 5\nAnswer: 5\n\n"
)


@dataclass(kw_only=True, slots=True)
class CalculatorConfig(MethodConfig):
    """The settings below `method`: the paths of the method's functions, and its own options."""

    name: str = "calculator"
    generate: str = "agentic.calculator.generate"
    reward: str | None = "agentic.calculator.reward"
    single_turn: str = "agentic.calculator.single_turn"
    max_calculations: Natural = 3
    """Calculations before the answer; a further one ends the rollout."""
    max_turn_tokens: Count = 24
    """Most tokens of a line."""

    def problems(self, config: RunConfig) -> list[Problem]:
        """Checks that the examples, a problem and all lines fit into the context."""
        num_lines = self.max_calculations + 1  # 256 tokens hold the examples with a problem, 16 a value
        reason = f"a problem and {num_lines} lines of method.max_turn_tokens={self.max_turn_tokens}"
        return self.context_problems(config, num_tokens=256 + num_lines * (self.max_turn_tokens + 16), reason=reason)


ConfigStore.instance().store(group="schema/method", name="calculator", node=CalculatorConfig)


async def generate(context: "Context", sample: Sample, sampling: Sampling, *, calculates: bool = True) -> Sample:
    """One rollout, in which lines and values alternate; the sample's `values` and `answer` are the results and the answer."""
    method = CalculatorConfig.of(context.config)
    most = method.max_calculations if calculates else 0
    examples = [line for line in EXAMPLES.splitlines(keepends=True) if most or not line.startswith(CALCULATION)]
    talk = context.models["actor"].conversation("".join(examples) + f"Problem: {sample.question.strip()}\n")
    reason, about = StopReason.TURN_LIMIT, dict[str, Any](values=[], answer=None)
    for num_left in range(most, -1, -1):
        kind, content = line_of((await talk.reply(max_tokens=method.max_turn_tokens, stop=STOPS)).text)
        if kind == ANSWER:
            reason, about["answer"] = StopReason.ANSWERED, content
            break
        try:
            about["values"].append(shown(computed(content)[0]))
        except ValueError:  # no arithmetic, or a line of neither kind, whose content is empty
            reason = StopReason.MALFORMED
            break
        if num_left:
            talk.add(f" {about['values'][-1]}\n")
    (result,) = context.samples(sample, **about)
    result.stop_reason = reason
    return result


async def single_turn(context: "Context", sample: Sample, sampling: Sampling) -> Sample:
    """The baseline: the answer at once, after the same examples without their calculations."""
    return await generate(context, sample, sampling, calculates=False)


async def reward(context: "Context", samples: list[Sample]) -> Reward:
    """`strict` is 1 for the right answer; `lenient` is also 1 if the last value of the calculator is right."""
    about, label = samples[-1].metadata, samples[-1].label[0]
    strict = is_number(about["answer"], label)
    lenient = strict or (bool(about["values"]) and is_number(about["values"][-1], label))
    metrics = {"strict": strict, "lenient": lenient, "calculated": bool(about["values"]), "answered": about["answer"] is not None}
    return Reward(score=float(strict), metrics={name: float(value) for name, value in metrics.items()})


def line_of(text: str) -> tuple[str | None, str]:
    """A line's kind and its content: an expression that ends with `=`, or an answer; None if it is neither."""
    found = LINE.match(text)
    if found is None or (found[1] == CALCULATION) != bool(found[3]) or not found[2].strip():
        return None, ""
    return found[1], found[2].strip().translate(SIGNS if found[1] == CALCULATION else {})


def shown(value: Fraction) -> str:
    """A value, with six significant digits if it is not a whole number. Example: `shown(Fraction(9, 2))` is "4.5"."""
    return str(value) if value.denominator == 1 else f"{float(value):.6g}"


def is_number(text: str | None, label: str) -> bool:
    """True for the number of a label, as exactly as the calculator shows it."""
    found, right = number(text or ""), number(label)
    assert right is not None, f"the answer {label!r} is not a number"
    return found is not None and (found == right or shown(found) == shown(right))
