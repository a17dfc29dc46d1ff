"""Search-R1's rewards: exact match of the last answer (arXiv 2503.09516), and scores for well-formed rollouts (arXiv 2505.15117).

A rollout is well-formed if it consists of <think>, <search> and <information> in this order, any number of times, and then
<think> and <answer>, with only blanks between them and none of these tags within another.
"""

import re

from agentic.search_r1.config import SearchR1Config
from vime.grading.qa import exact_match, f1, gold_in_prediction
from vime.rollout.context import Context
from vime.thinking import after_thinking
from vime.types import Reward, Sample

ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
INFORMATION = re.compile(r"<information>(.*?)</information>", re.DOTALL)


def _block(tag: str) -> str:
    return rf"\s*<{tag}>(?:(?!</?(?:think|search|information|answer)>).)*</{tag}>"


ROUND, END = "".join(map(_block, ("think", "search", "information"))), "".join(map(_block, ("think", "answer")))
WELL_FORMED = re.compile(rf"(?:{ROUND})*{END}\s*", re.DOTALL)


async def reward(context: Context, samples: list[Sample]) -> Reward:
    """The reward that `method.*` chooses; an evaluation reports the exact match alone, as the papers do."""
    found = score(samples[-1].response, samples[-1].label, method=SearchR1Config.of(context.config))
    return Reward(score=found.metrics["strict"], metrics=found.metrics) if context.evaluation else found


def score(response: str, references: list[str], *, method: SearchR1Config) -> Reward:
    """The reward of a response with its search results; the metric `strict` is exact match, `lenient` a gold answer within it."""
    said = after_thinking(INFORMATION.sub("", response))  # what passages say is neither an answer nor a thinking
    answers, is_well_formed = ANSWER.findall(said), WELL_FORMED.fullmatch(response) is not None
    answer = answers[-1].strip() if answers else ""
    is_right = bool(answers) and exact_match(answer, references) == 1.0
    holds_gold = any(gold_in_prediction(result, references) for result in INFORMATION.findall(response))
    if is_right:
        earned = 1.0 if is_well_formed else 1.0 - method.structure_format_score
    elif is_well_formed:
        earned = method.format_score + method.structure_format_score + holds_gold * method.retrieval_score
    else:
        earned = (method.format_score + method.final_format_score) * bool(answers)
    metrics = {"strict": float(is_right), "lenient": gold_in_prediction(answer, references), "f1": f1(answer, references)}
    return Reward(score=earned, metrics={**metrics, "answered": float(bool(answers)), "well_formed": float(is_well_formed)})
