"""The reward of word problems: 1 if the answer is the right number."""

from agentic.calculator.generate import shown
from vime.grading.number import number
from vime.rollout.context import Context
from vime.types import Reward, Sample


async def reward(context: Context, samples: list[Sample]) -> Reward:
    """`strict` is 1 for the right answer, `lenient` also where the last value of the calculator is right."""
    about, label = samples[-1].metadata, samples[-1].label[0]
    strict = is_number(about["answer"], label)
    computed = bool(about["values"]) and is_number(about["values"][-1], label)
    metrics = {"strict": float(strict), "lenient": float(strict or computed), "calculated": float(bool(about["values"]))}
    return Reward(score=metrics["strict"], metrics=metrics | {"answered": float(about["answer"] is not None)})


def is_number(text: str | None, label: str) -> bool:
    """Whether a text is the number of a label, as exactly as the calculator shows it."""
    found, right = number(text or ""), number(label)
    assert right is not None, f"the answer {label!r} is not a number"
    return found is not None and (found == right or shown(found) == shown(right))
