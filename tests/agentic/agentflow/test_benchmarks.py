"""The ten benchmarks: their table, their files as rows, and every gold answer against its grader."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agentic.agentflow.benchmarks import BENCHMARKS, rows
from vime.data.dataset import to_prompt
from vime.errors import ConfigError
from vime.grading.grade import KINDS, grade
from vime.grading.qa import exact_match

FOLDERS = [folder / "shared" / "data" for folder in Path(__file__).resolve().parents]
DATA = next((folder for folder in FOLDERS if folder.is_dir()), None)
FILES = {name: DATA / f"agentflow_{name}.json" for name in BENCHMARKS} if DATA else {}
THERE = [name for name, file in FILES.items() if file.is_file()]
needs_files = pytest.mark.skipif(not THERE, reason="the public files are not there")


def write(folder: Path, name: str, items: Any) -> Path:
    """A file of a benchmark."""
    (folder / name).write_text(json.dumps(items))
    return folder


def test_the_table_has_ten_benchmarks_with_graders_that_exist():
    assert len(BENCHMARKS) == 10
    assert {benchmark.grader for benchmark in BENCHMARKS.values()} <= set(KINDS)
    assert Counter(benchmark.table for benchmark in BENCHMARKS.values()) == {1: 5, 2: 5}


def test_a_file_becomes_prompts(tmp_path: Path):
    items = [{"query": "2+2?", "question": [2, 2], "answer": 4, "pid": "7"}, {"query": "Who?", "answer": ["Ada", "A. L."]}]
    found = rows(num_items=None, seed=0, benchmark="aime24", folder=str(write(tmp_path, "aime24.json", items)))
    first, second = (to_prompt(row, index=0, row_number=0, dataset="aime24") for row in found)
    assert first.messages == [{"role": "user", "content": "2+2?"}] and first.ground_truth == ["4"]
    assert first.metadata.items() >= {"benchmark": "aime24", "grader": "maths", "item": "7"}.items()
    assert second.ground_truth == ["Ada", "A. L."] and second.metadata["item"] == "1"


def test_some_items_are_drawn_by_the_seed(tmp_path: Path):
    folder = str(write(tmp_path, "agentflow_2wiki.json", [{"query": str(n), "answer": "a"} for n in range(50)]))
    drawn = [[row["prompt"] for row in rows(num_items=5, seed=seed, benchmark="2wiki", folder=folder)] for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2] and len(set(drawn[0])) == 5


def test_what_cannot_be_loaded_is_refused_with_a_remedy(tmp_path: Path):
    with pytest.raises(ConfigError, match="choose from bamboogle"):
        rows(num_items=None, seed=0, benchmark="mmlu", folder=str(tmp_path))
    with pytest.raises(ConfigError, match=r"agentflow_gaia\.json"):
        rows(num_items=None, seed=0, benchmark="gaia", folder=str(tmp_path))
    for content, message in (
        ("?", "is no object but a str"),
        ({"query": "?"}, "query and answer"),
        ([{"query": "?"}], "query and answer"),
    ):
        write(tmp_path, "gaia.json", content)
        with pytest.raises(ConfigError, match=message):
            rows(num_items=None, seed=0, benchmark="gaia", folder=str(tmp_path))


@needs_files
@pytest.mark.parametrize("name", THERE)
def test_the_public_files_have_the_items_of_the_table(name: str):
    assert len(rows(num_items=None, seed=0, benchmark=name, folder=str(DATA))) == BENCHMARKS[name].num_items


@needs_files
@pytest.mark.parametrize("name", THERE)
async def test_every_gold_answer_scores_1_and_a_plausible_wrong_one_0(name: str):
    found = rows(num_items=None, seed=0, benchmark=name, folder=str(DATA))
    failures = []
    for number, row in enumerate(found):
        gold = to_prompt(row, index=0, row_number=number, dataset=name).ground_truth
        kind, question = row["grader"], row["prompt"]
        for answer in gold:
            replies = (answer, f"So the answer is \\boxed{{{answer}}}.", f"Thus\n<answer>{answer}</answer>")
            right = [await grade(kind, reply, gold, question=question) for reply in replies]
            failures += [(number, answer, score) for score in right if score.score != 1.0]
        for answer in wrong_answers(kind, gold, [str(other["reward_model"]["ground_truth"][0]) for other in found], number):
            wrong = await grade(kind, f"I think it is \\boxed{{{answer}}}", gold, question=question)
            failures += [(number, answer, wrong)] if wrong.score != 0.0 else []
    assert not failures, failures[:5]


def wrong_answers(kind: str, gold: list[str], others: list[str], number: int) -> list[str]:
    """Answers of the right form: the next item's, and one that is nearly right."""
    following = others[number + 1 :] + others[:number]
    other = next(answer for answer in following if not exact_match(answer, gold) and (kind != "game24" or answer not in gold))
    if kind == "maths":
        value = int(gold[0])
        return [str(value + 1), f"-{value or 1}", rf"\frac{{{value or 1}}}{{7}}"]
    if kind == "game24":
        return [f"{gold[0]}+1", f"({gold[0]})*1*1", "24"]
    return [other, f"not {gold[0]}"]
