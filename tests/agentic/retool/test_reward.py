"""ReTool's reward beside the code of ReTool's evaluation, verl's recipe and slime's example, which scored these answers once."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentic.retool.config import RewardStyle
from agentic.retool.reward import last_box, score_of, strict_box, verdict_of
from vime.grading.maths import Equality

ANSWERS: list[dict[str, Any]] = [json.loads(line) for line in Path(__file__).with_name("answers.jsonl").read_text().splitlines()]


def is_cut(answer: dict[str, Any]) -> bool:
    """True if an answer's last box is not closed: the original evaluation reads it, here it is no answer."""
    last = answer["response"].rpartition("boxed")[2]
    return last.startswith("{") and last.count("{") > last.count("}")


def test_boxes_are_those_of_the_original_code_but_for_those_that_are_not_closed():
    assert len(ANSWERS) == 450 and any(map(is_cut, ANSWERS))
    for answer in ANSWERS:
        assert last_box(answer["response"]) == (None if is_cut(answer) else answer["box"]), answer
        assert (strict_box(answer["response"]) or "") == answer["strict_box"], answer


@pytest.mark.parametrize("style", [RewardStyle.verl, RewardStyle.slime])
async def test_scores_are_those_of_the_original_code(style: RewardStyle):
    for answer in ANSWERS:
        verdict = await verdict_of(strict_box(answer["response"]), [answer["reference"]], style=style)
        is_right = verdict is Equality.equal
        score = score_of(is_right, num_calls=answer["calls"], style=style)
        assert score == pytest.approx(answer[style.value]), answer


@pytest.mark.slow
async def test_an_answer_is_right_where_the_original_evaluation_says_so():
    for answer in ANSWERS:
        verdict = await verdict_of(last_box(answer["response"]), [answer["reference"]], style=RewardStyle.paper)
        assert answer["box"] is None or is_cut(answer) or (verdict is Equality.equal) == answer["equal"], answer
    assert {score_of(is_right, num_calls=9, style=RewardStyle.paper) for is_right in (True, False)} == {1.0, -1.0}
