"""Problems of mathematics: published layouts, gold answers, and answers without a box."""

from pathlib import Path
from typing import Any

import pytest

from agentic.benchmarks.maths_problems import Aime24, Aime25, Gsm8k, Math500, MathsProblems
from tests.agentic.benchmarks.asking import folder_with, rewards, rows_of, scores, written

GSM8K = {"question": "How many?", "answer": "It is <<3*500=1500>>1500.\n#### 1,500"}
MATH = {
    "problem": "What is $p$?",
    "solution": r"So \boxed{\frac{14}{3}}.",
    "answer": r"\frac{14}{3}",
    "subject": "Algebra",
    "level": 3,
    "unique_id": "test/algebra/1.json",
}
TAGS = (
    "When ready, output the final answer enclosed in <answer> and </answer> tags. "
    "Do not generate any content after the </answer> tag."
)
LAYOUTS: list[tuple[type[MathsProblems], str, dict[str, Any], str]] = [
    (Gsm8k, "gsm8k.jsonl", GSM8K, "1500"),
    (Math500, "math500.jsonl", MATH, r"\frac{14}{3}"),
    (Aime24, "aime24.jsonl", {"id": 60, "problem": "What is $p$?", "answer": "204", "year": "2024"}, "204"),
    (Aime24, "aime24.jsonl", {"ID": "2024-I-1", "Problem": "What is $p$?", "Solution": "", "Answer": 204}, "204"),
    (Aime24, "agentflow_aime24.json", {"query": f"What is $p$?{TAGS}", "question": "", "answer": 204, "pid": "0"}, "204"),
    (Aime25, "aime25.jsonl", {"problem": "What is $p$?", "answer": "70", "id": "0"}, "70"),
]


@pytest.mark.parametrize(("kind", "name", "item", "gold"), LAYOUTS)
def test_published_layouts_are_read(kind: type[MathsProblems], name: str, item: dict[str, Any], gold: str, tmp_path: Path):
    benchmark = kind(folder=written(tmp_path, name, [item, item]))
    found = rows_of(benchmark)
    assert [row["answer"] for row in found] == [gold, gold]
    asked = found[0]["prompt"][0]["content"]
    assert asked.splitlines()[0] in ("What is $p$?", "How many?") and asked.endswith(r"\boxed{}.") and "<answer>" not in asked
    assert rewards(benchmark, found, lambda row: rf"First 7. So \boxed{{{gold}}}.") == [1.0, 1.0]
    assert rewards(benchmark, found, lambda row: r"So \boxed{13}.") == [0.0, 0.0]


def test_an_answer_without_a_box_counts_for_the_lenient_score_only(tmp_path: Path):
    gsm8k = Gsm8k(folder=written(tmp_path, "gsm8k.jsonl", [GSM8K]))
    maths = Math500(folder=written(tmp_path, "math500.jsonl", [MATH]))
    for benchmark, said in ((gsm8k, "They are 500 times 3, in all 1,500 eggs."), (maths, "Thus\nThe answer is 14/3")):
        (outcome,) = scores(benchmark, rows_of(benchmark), lambda row, said=said: said)
        assert (outcome.rewards, dict(outcome.metrics)) == (0.0, {"strict": 0.0, "lenient": 1.0, "boxed": 0.0})


@pytest.mark.parametrize(
    ("gold", "said", "score"),
    [
        ("50", r"50\%", 1.0),
        ("50", "50%", 1.0),
        ("50", r"50\%\text{ of the total}", 1.0),
        ("50", r"5\%", 0.0),
        (r"\frac{1}{2}", r"50\%", 1.0),
        (r"28\%", "28", 1.0),
        (r"28\%", r"28\%", 1.0),
        ("12", r"12 \text{ bags of apples}", 1.0),
        ("12", r"12\ \text{more apples}", 1.0),
        ("12", r"\$12~\text{each}", 1.0),
        ("12", r"\text{12 eggs}", 1.0),
        ("12", r"\text{12 eggs and 5 apples}", 0.0),
        ("12", r"1 \text{ hour } 12 \text{ minutes}", 0.0),
        ("12", r"12\text{ million}", 0.0),
        ("12", r"12 \text{ dozen}", 0.0),
        ("12", r"13 \text{ bags of apples}", 0.0),
        (r"12\text{ cm}", r"12\text{ m}", 0.0),
        ("073", "73", 1.0),
        ("73", "073", 1.0),
        (r"\text{Evelyn}", r"Evelyn", 1.0),
        (r"\text{Evelyn}", r"\text{Evelyn and Bob}", 0.0),
    ],
)
def test_percent_signs_and_words_behind_a_number_do_not_count(gold: str, said: str, score: float, tmp_path: Path):
    benchmark = Math500(folder=written(tmp_path, "math500.jsonl", [MATH | {"answer": gold}]))
    assert rewards(benchmark, rows_of(benchmark), lambda row: rf"So \boxed{{{said}}}.") == [score]


@pytest.mark.parametrize(
    ("kind", "num_items"),
    [(Gsm8k, 1319), (Math500, 500), (Aime24, 30), (Aime25, 30)],
    ids=["gsm8k", "math500", "aime24", "aime25"],
)
def test_gold_answers_of_the_published_file_score_1(kind: type[MathsProblems], num_items: int):
    benchmark = kind(folder=folder_with(kind.source))
    found = rows_of(benchmark)
    assert len(found) == num_items
    assert sum(rewards(benchmark, found, lambda row: rf"So \boxed{{{row['answer']}}}.")) == num_items
    assert sum(rewards(benchmark, found, lambda row: r"So \boxed{-123457}.")) == 0
