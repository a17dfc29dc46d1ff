"""HumanEval and MBPP: published layouts, programs in a sandbox, and canonical solutions."""

from pathlib import Path
from typing import Any

import pytest

from agentic.benchmarks.written_functions import HumanEval, Mbpp
from tests.agentic.benchmarks.asking import folder_with, rewards, rows_of, scores, written
from vime.agent.sandbox import sandbox_problem
from vime.errors import ConfigError

needs_sandbox = pytest.mark.skipif(sandbox_problem() is not None, reason=str(sandbox_problem()))
DOUBLE = {
    "task_id": "HumanEval/0",
    "prompt": 'from typing import List\n\n\ndef double(values: List[int]) -> List[int]:\n    """Doubles each value."""\n',
    "entry_point": "double",
    "canonical_solution": "    return [2 * value for value in values]\n",
    "test": "\n\nMETADATA = {}\n\n\ndef check(candidate):\n    assert candidate([1, 2]) == [2, 4]\n",
}
SQUARE = {
    "task_id": 11,
    "text": "Write a function to square a number.",
    "code": "def square(x):\r\n  return x * x",
    "test_list": ["assert square(2) == 4", "assert square(3) == 9", "assert square(-1) == 1"],
    "test_setup_code": "",
    "challenge_test_list": [],
}
EDITED = {
    "source_file": "Benchmark Questions Verification V2.ipynb",
    "task_id": 12,
    "prompt": "Write a function to halve a number.",
    "code": "def half(x):\n  return x / 2",
    "test_imports": ["import math"],
    "test_list": ["assert math.isclose(half(4), 2)"],
}


RIGHT, WRONG = "def double(values):\n    return [2 * v for v in values]", "def double(values):\n    return values"
USAGE = "```python\nprint(double([1, 2]))\n```"


def block(code: str) -> str:
    return f"Here it is:\n```python\n{code}\n```\nIt works."


@needs_sandbox
@pytest.mark.parametrize(
    ("said", "score"),
    [
        (block(f"{DOUBLE['prompt']}{DOUBLE['canonical_solution']}"), 1.0),
        (block("def double(values: List[int]) -> List[int]:\n    return [2 * v for v in values]"), 1.0),  # without its import
        (block("    return [2 * v for v in values]"), 1.0),
        (block("def double(values):\n    return values"), 0.0),
        (block("def double(values):\n    raise SystemExit(0)"), 0.0),
        (block("print('all tests passed')\nraise SystemExit(0)\n\n\ndef double(values):\n    return values"), 0.0),
        (block("def double(values)"), 0.0),
        ("It cannot be done.", 0.0),
        ("", 0.0),
    ],
)
def test_the_whole_function_or_its_body_is_judged_by_the_tests(said: str, score: float, tmp_path: Path):
    benchmark = HumanEval(folder=written(tmp_path, "HumanEval.jsonl", [DOUBLE]))
    assert rewards(benchmark, rows_of(benchmark), lambda row: said) == [score]


@needs_sandbox
@pytest.mark.parametrize(
    ("said", "score"),
    [
        (f"{block(RIGHT)}\nIt is used so:\n{USAGE}", 1.0),
        (f"{USAGE}\n{block(RIGHT)}", 1.0),
        (f"{block(WRONG)}\nBetter:\n{block(RIGHT)}\n{USAGE}", 1.0),
        (f"{block(RIGHT)}\nBetter:\n```\n{WRONG}\n```", 0.0),
        (f"```text\ndouble([1, 2])\n```\n{block(RIGHT)}\n```text\n[2, 4]\n```\nThat is all.", 1.0),
        (f"```bash\npython double.py\n```\nThen:\n{block(RIGHT)}\n```json\n{{}}\n```\nDone.\n", 1.0),
        (f"{block('    return [2 * v for v in values]')}\nOutput:\n```\n[2, 4]\n```\n", 1.0),
        (f"```\n{RIGHT}\n```", 1.0),
        (f"```Python3\n{RIGHT}\n```", 1.0),
        (f"```{{.python}}\n{RIGHT}", 1.0),
        (f"````python\n{RIGHT}  # ```\n````\n```pycon\n>>> double([1])\n```", 1.0),
        (f"As `double`: ```python\n{RIGHT}```", 1.0),
        ("1. So:\n\n   ```python\n   def double(values):\n       return [2 * v for v in values]\n   ```\n", 1.0),
        (block("double = lambda values: [2 * v for v in values]"), 1.0),
        (f"```javascript\n{RIGHT}\n```", 0.0),
        (f"```text\n{RIGHT}\n```\n{USAGE}", 0.0),
    ],
)
def test_the_block_that_defines_the_function_is_judged(said: str, score: float, tmp_path: Path):
    benchmark = HumanEval(folder=written(tmp_path, "HumanEval.jsonl", [DOUBLE]))
    assert rewards(benchmark, rows_of(benchmark), lambda row: said) == [score]


@needs_sandbox
@pytest.mark.parametrize("end", ["", "\n", " ", "\n\n"])
def test_what_a_function_prints_does_not_change_its_score(end: str, tmp_path: Path):
    benchmark = HumanEval(folder=written(tmp_path, "HumanEval.jsonl", [DOUBLE]))
    loud = f"import atexit\natexit.register(print, 'bye')\n{RIGHT.replace('return', f'print(values, end={end!r}); return')}"
    assert rewards(benchmark, rows_of(benchmark), lambda row: block(loud)) == [1.0]


@needs_sandbox
def test_a_program_that_does_not_end_or_prints_much_is_judged_by_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tests.agentic.benchmarks.asking.CONFIG.sandbox.wall_seconds", 2.0)
    benchmark = HumanEval(folder=written(tmp_path, "HumanEval.jsonl", [DOUBLE]))
    loud, endless = "    print('x' * 10_000)\n    return [2 * v for v in values]", "    while True:\n        pass"
    outcomes = [scores(benchmark, rows_of(benchmark), lambda row, code=code: block(code))[0] for code in (loud, endless)]
    assert [(one.rewards, one.metrics["ended_by_limit"]) for one in outcomes] == [(1.0, 0.0), (0.0, 1.0)]


@needs_sandbox
def test_a_base_model_continues_the_text_up_to_its_stop(tmp_path: Path):
    benchmark = HumanEval(folder=written(tmp_path, "HumanEval.jsonl", [DOUBLE]), completion=True)
    (row,) = rows_of(benchmark)
    assert row["prompt"] == DOUBLE["prompt"] and "\ndef" in benchmark.observation(row["item"]).stop
    assert rewards(benchmark, [row], lambda row: f"{DOUBLE['canonical_solution']}\ndef further():\n  (") == [1.0]


@needs_sandbox
def test_mbpp_is_read_in_both_of_its_files(tmp_path: Path):
    shown = [{**SQUARE, "task_id": number} for number in (2, 3, 4)]
    folder = written(tmp_path, "mbpp.jsonl", [*shown, SQUARE, {**SQUARE, "task_id": 700}])
    (row,) = rows_of(Mbpp(folder=folder))
    assert "Your code should pass these tests:" in row["prompt"][0]["content"]
    assert rewards(Mbpp(folder=folder), [row] * 2, lambda row: block(SQUARE["code"])) == [1.0, 1.0]
    assert rewards(Mbpp(folder=folder), [row], lambda row: block("def square(x):\n  return x + x")) == [0.0]
    used = f"{block(SQUARE['code'])}\n```python\nassert square(2) == 4\nsquared = square(3)\n```\n```\n4\n```"
    assert rewards(Mbpp(folder=folder), [row], lambda row: used) == [1.0]
    completed = Mbpp(folder=folder, completion=True)
    (row,) = rows_of(completed)
    assert row["prompt"].count("[DONE]") == 3 and row["prompt"].endswith("[BEGIN]\n")
    assert rewards(completed, [row], lambda row: f"{SQUARE['code']}\n[DONE]\nYou are") == [1.0]
    edited = Mbpp(folder=written(tmp_path, "sanitized-mbpp.jsonl", [EDITED]), subset="sanitized")
    assert rewards(edited, rows_of(edited), lambda row: block(EDITED["code"])) == [1.0]


def test_another_subset_is_refused():
    with pytest.raises(ConfigError, match="test or sanitized"):
        Mbpp(subset="all")


@pytest.mark.slow
@needs_sandbox
@pytest.mark.parametrize("completion", [False, True], ids=["chat", "completion"])
def test_canonical_solutions_of_humaneval_score_1(completion: bool):
    benchmark = HumanEval(folder=folder_with(HumanEval.source), completion=completion)
    found = rows_of(benchmark)
    assert len(found) == 164

    def solution(row: dict[str, Any]) -> str:
        item = row["item"]
        return item["canonical_solution"] if completion else block(f"{item['prompt']}{item['canonical_solution']}")

    assert rewards(benchmark, found, solution) == [1.0] * 164
    assert sum(rewards(benchmark, found[:20], lambda row: "    return None")) == 0


@pytest.mark.slow
@needs_sandbox
@pytest.mark.parametrize(("subset", "num_items"), [("test", 500), ("sanitized", 257)])
def test_solutions_of_mbpp_score_1(subset: str, num_items: int):
    source = Mbpp.source if subset == "test" else Mbpp.sanitized
    benchmark = Mbpp(folder=folder_with(source), subset=subset)
    found = rows_of(benchmark)
    assert len(found) == num_items
    assert sum(rewards(benchmark, found, lambda row: block(row["item"]["code"]))) == num_items
