"""ReTool's reward: 1 for the right answer in the last box, otherwise -1 (arXiv 2504.11536, equation 2), or a variant of it.

How well programs went does not count; in the variants of verl and slime a wrong answer costs less the more of them were run.
"""

import re

from agentic.retool.config import ReToolConfig, RewardStyle
from vime.grading.maths import Equality, equal
from vime.rollout.context import Context
from vime.thinking import after_thinking
from vime.types import Reward, Sample

STRICT_CHARACTERS = 100
"""Characters at the end of a response in which verl and slime look for a box."""
_BOX = "\\boxed{"
_WRONG: dict[RewardStyle, tuple[float, float, float]] = {
    RewardStyle.paper: (-1.0, 0.0, -1.0),
    RewardStyle.verl: (-1.0, 0.1, -0.6),
    RewardStyle.slime: (-1.1, 0.05, -0.6),
}
"""Terms of a wrong answer's score: that without programs, what each one adds, and the most that it can earn."""


async def reward(context: Context, samples: list[Sample]) -> Reward:
    """Scores the response; `strict` is 1 if the answer is right, `lenient` also if the last line's last number is."""
    style, response = ReToolConfig.of(context.config).reward_style, samples[-1]
    said = after_thinking(response.response, thinks=context.config.model.thinks)
    answer = last_box(said) if style is RewardStyle.paper else strict_box(said)
    verdict = await verdict_of(answer, response.label, style=style)
    is_right = verdict is Equality.equal
    numbers = re.findall(r"\d+", said.rpartition("\n")[2])
    is_nearly_right = (
        is_right or await verdict_of(numbers[-1] if numbers else None, response.label, style=style) is Equality.equal
    )
    return Reward(
        score=score_of(is_right, num_calls=sum(response.metadata["calls"].values()), style=style),
        metrics={
            "strict": float(is_right),
            "lenient": float(is_nearly_right),
            "boxed": float(answer is not None),
            "undecided": float(verdict in (Equality.undecided, Equality.limit)),
        },
    )


async def verdict_of(answer: str | None, references: list[str], *, style: RewardStyle) -> Equality:
    """The verdict about an answer: by mathematics in the paper, letter by letter in verl and slime."""
    if answer is None or style is not RewardStyle.paper:
        return Equality.equal if answer in references else Equality.different
    return await equal(answer, references)


def score_of(is_right: bool, *, num_calls: int, style: RewardStyle) -> float:
    """The reward of a right or wrong answer after this many programs."""
    start, per_call, most = _WRONG[style]
    return 1.0 if is_right else min(most, start + per_call * num_calls)


def last_box(text: str) -> str | None:
    """The text behind the last `boxed`: within its braces, None if they are not closed; else up to a dollar sign."""
    _, found, rest = text.rpartition("boxed")
    if not found:
        return None
    if not rest.startswith("{"):
        return rest.split("$")[0].strip()
    end = _closing(rest)
    return None if end is None else rest[1:end]


def strict_box(text: str) -> str | None:
    """The content of the last box that begins within the final 100 characters; None if it is not closed."""
    _, found, rest = text[-STRICT_CHARACTERS:].rpartition(_BOX)
    end = _closing("{" + rest) if found else None
    return None if end is None else rest[: end - 1]


def _closing(text: str) -> int | None:
    """The position of the brace that closes the first one."""
    depth = 0
    for position, character in enumerate(text):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return position
    return None
