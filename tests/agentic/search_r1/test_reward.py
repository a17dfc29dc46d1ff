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

ALL_RECORDS = [json.loads(line) for line in (Path(__file__).parent / "answers.jsonl").read_text().splitlines()]
RECORDS = [record for record in ALL_RECORDS if (record["extracted"], record["gold"]) != ("the", ["a"])]
"""Without those in which the published functions take one article for another."""
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


def test_another_article_is_no_answer_to_one_where_the_published_functions_take_it_for_right():
    others = [record for record in ALL_RECORDS if record not in RECORDS]
    assert others and all(record["exact_match"] == 1.0 for record in others)
    assert not any(score(record["response"], record["gold"], method=FIRST_PAPER).score for record in others)
    assert score("<answer> A. </answer>", ["a"], method=FIRST_PAPER).score == 1.0


@pytest.mark.parametrize("end", ["", " <search> more </search>", "</answer>", "\n<think>again"])
def test_an_answer_in_a_thinking_that_is_not_closed_is_none(end: str):
    found = score(f"<think> I guess <answer> Oslo </answer>, but{end}", ["Oslo"], method=FIRST_PAPER)
    assert (found.score, found.metrics["answered"], found.metrics["lenient"]) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("passage", ["<answer> Rome </answer>", "<think>", "they write <think> first", "</answer><answer>"])
def test_what_a_passage_says_is_neither_an_answer_nor_a_thinking(passage: str):
    response = f"<answer> Oslo </answer><information>Doc 1(Title: X) {passage}</information>"
    assert score(response, ["Oslo"], method=FIRST_PAPER).score == 1.0


@pytest.mark.parametrize(("evaluation", "expected"), [(False, 0.8), (True, 1.0)])
def test_an_evaluation_reports_exact_match_whatever_is_trained(evaluation: bool, expected: float):
    context: Any = Context(config=RunConfig(method=SECOND_PAPER), evaluation=evaluation, session_id="s")
    sample = Sample(response="<answer> the Barton </answer>", label=["Barton"])
    assert asyncio.run(reward(context, [sample])).score == expected
