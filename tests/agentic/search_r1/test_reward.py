"""Search-R1's rewards equal those of the published functions on recorded answers; `answers.jsonl` holds what these returned.

`extracted` and `exact_match` are of qa_em.py, `format_score` of the same with format_score=0.1; `structure` is of qa_em_format.py
with structure_format_score=0.2 and final_format_score=0.1, `retrieval` has retrieval_score=0.1 besides, and `well_formed` is what
its check of the structure found. The published functions read the prompt as well and expect one example of an answer in it, which
they were given; `structure_with_two_examples` is `structure` with two of them, as in the published prompt.
"""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentic.search_r1.config import SearchR1Config
from agentic.search_r1.reward import reward, score
from vime.config import RunConfig
from vime.rollout.context import Context
from vime.types import Sample

RECORDS = [json.loads(line) for line in (Path(__file__).parent / "answers.jsonl").read_text().splitlines()]
FIRST_PAPER = SearchR1Config()
SECOND_PAPER = SearchR1Config(structure_format_score=0.2, final_format_score=0.1)
OF_COLUMNS = {
    "exact_match": FIRST_PAPER,
    "format_score": SearchR1Config(format_score=0.1),
    "structure": SECOND_PAPER,
    "retrieval": replace(SECOND_PAPER, retrieval_score=0.1),
}


@pytest.mark.parametrize("column", OF_COLUMNS)
def test_rewards_equal_those_of_the_published_functions(column: str):
    assert len(RECORDS) >= 200
    assert len({record[column] for record in RECORDS}) > 1
    for record in RECORDS:
        found = score(record["response"], record["gold"], method=OF_COLUMNS[column])
        assert found.score == pytest.approx(record[column]), record
        assert found.metrics["strict"] == record["exact_match"], record
        assert found.metrics["well_formed"] == record["well_formed"], record
        assert found.metrics["answered"] == (record["extracted"] is not None), record


def test_the_published_prompts_example_counts_there_as_the_answer_of_a_rollout_without_one():
    for record in RECORDS:
        found = score(record["response"], record["gold"], method=SECOND_PAPER).score
        if record["extracted"] is None:
            found = score("<answer> Beijing </answer>", record["gold"], method=SECOND_PAPER).score
        assert found == pytest.approx(record["structure_with_two_examples"]), record


@pytest.mark.parametrize(("evaluation", "expected"), [(False, 0.8), (True, 1.0)])
def test_an_evaluation_reports_exact_match_whatever_is_trained(evaluation: bool, expected: float):
    context: Any = Context(config=RunConfig(method=SECOND_PAPER), evaluation=evaluation, session_id="s")
    sample = Sample(response="<answer> the Barton </answer>", label=["Barton"])
    assert asyncio.run(reward(context, [sample])).score == expected
