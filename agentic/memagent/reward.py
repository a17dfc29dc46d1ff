"""MemAgent's reward: 1 if the boxed answer equals the gold answer, strictly; lenient scores stand beside it."""

from vime.grading.boxed import boxed_equal, last_boxed
from vime.grading.qa import exact_match, f1, substring_match
from vime.rollout.context import Context
from vime.types import Reward, Sample


async def reward(context: Context, samples: list[Sample]) -> Reward:
    """Scores the last turn, which is the answer.

    `strict` is the training reward; `lenient` is the paper's test metric (either string contains the other after SQuAD's
    normalisation), on the box if there is one and on the whole answer otherwise.
    """
    return score(samples[-1].response, samples[-1].label)


def score(response: str, references: list[str]) -> Reward:
    """All scores of one answer, 0 or 1 each but F1."""
    strict = float(boxed_equal(response, references))
    answer = last_boxed(response)
    prediction = response if answer is None else answer
    return Reward(
        score=strict,
        metrics={
            "strict": strict,
            "lenient": substring_match(prediction, references),
            "exact_match": exact_match(prediction, references),
            "f1": f1(prediction, references),
            "boxed": float(answer is not None),
        },
    )
