"""MemAgent's reward: 1 if the boxed answer strictly equals the gold answer; lenient scores are reported beside it.

RULER's needle tasks have several answers and require all of them (`metric: all` in the row).
"""

from agentic.memagent.config import MemAgentConfig
from agentic.memagent.prompts import ANSWER_WORDS, AnswerForm
from vime.grading.boxed import boxed_equal, last_boxed
from vime.grading.qa import (
    exact_match,
    gold_in_prediction,
    hotpotqa_f1,
    string_match_all,
    substring_match,
    unguarded_substring_match,
)
from vime.rollout.context import Context
from vime.thinking import after_thinking
from vime.types import Reward, Sample

ALL = "all"


async def reward(context: Context, samples: list[Sample]) -> Reward:
    """Scores the last turn, which is the answer.

    `strict` is the training reward; `lenient` is the paper's test metric (either string contains the other after SQuAD's
    normalisation), on the box if there is one and on the whole answer otherwise.
    """
    answer = samples[-1]
    said = after_thinking(answer.response, thinks=context.config.model.thinks)
    if answer.metadata.get("metric") == ALL:
        return score_all(said, answer.label)
    form = MemAgentConfig.of(context.config).answer_form(evaluation=context.evaluation)
    return score(said if form is AnswerForm.boxed else boxed(said), answer.label)


def boxed(response: str) -> str:
    r"""The text after the last "the answer is" as `\boxed{…}`, "" without these words, as the authors' evaluation reads it."""
    _, words, answer = response.replace("*", "").rpartition(ANSWER_WORDS)
    answer = answer.strip().strip(".").strip().removeprefix("(").removesuffix(")").strip()
    return rf"\boxed{{{answer}}}" if words and answer else ""


def score(response: str, references: list[str]) -> Reward:
    """All scores of one answer, each 0 or 1 except F1.

    `sub_em_unguarded` scores an empty answer 1, as slime-agentic does; it only serves comparisons with published numbers.
    """
    strict = float(boxed_equal(response, references))
    answer = last_boxed(response)
    prediction = response if answer is None else answer
    return Reward(
        score=strict,
        metrics={
            "strict": strict,
            "lenient": substring_match(prediction, references),
            "exact_match": exact_match(prediction, references),
            "f1": hotpotqa_f1(prediction, references),
            "gold_in_prediction": gold_in_prediction(prediction, references),
            "sub_em_unguarded": unguarded_substring_match(prediction, references),
            "boxed": float(answer is not None),
        },
    )


def score_all(response: str, references: list[str]) -> Reward:
    """Scores of RULER's needle tasks: strict if the box holds every reference, lenient the share found in the whole reply."""
    answer = last_boxed(response)
    strict = float(answer is not None and string_match_all(answer, references) == 1.0)
    metrics = {"strict": strict, "lenient": string_match_all(response, references), "boxed": float(answer is not None)}
    return Reward(score=strict, metrics=metrics)
