"""Collections of programs become rows: hidden tests need nothing of upstream's own machinery, and nothing gives them away."""

import ast
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from agentic.coding.patch import after_patch, patch_between, reverse
from agentic.coding.sources import exercism, human_eval, mbpp, quixbugs, swe
from agentic.coding.task import Task

QUIX_TEST = """import pytest
from load_testdata import load_json_testcases

if pytest.use_correct:
    from correct_python_programs.half import half
else:
    from python_programs.half import half


testdata = load_json_testcases(half.__name__)


@pytest.mark.parametrize("input_data,expected", testdata)
def test_half(input_data, expected):
    if not pytest.run_slow and input_data == [1000, [1]]:
        pytest.skip("Takes long!")

    assert half(*input_data) == expected
"""
HUMAN_EVAL = {
    "task_id": "HumanEval/7",
    "prompt": 'import math\n\n\ndef helper(x):\n    return x\n\n\ndef twice(x):\n    """ Doubles. """\n',
    "canonical_solution": "    return 2 * x\n",
    "entry_point": "twice",
    "test": "METADATA = {}\n\n\ndef check(candidate):\n    assert candidate(helper(math.floor(2.5))) == 4\n",
}
MBPP = {
    "task_id": 601,
    "text": "Write a function to add a pair.",
    "code": "import math\r\nclass Pair:\r\n  def __init__(self, a, b):\r\n    self.a, self.b = a, b\r\n"
    "def add(pair):\r\n  return own(pair)\r\ndef own(p):\r\n  return p.a + p.b",
    "test_setup_code": "import math",
    "test_list": ["assert add(Pair(1, 2)) == 3", "assert add(Pair(2, 2)) == math.floor(4.2)"],
}


def write(folder: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def solved(row: dict[str, Any]) -> dict[str, str]:
    """The files of a row with its reference solution; the row must be one."""
    Task.of(row)
    return {**row["files"], **after_patch(row["files"], row["patch"])}


def passes(row: dict[str, Any], files: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """True if the plain functions of the row's tests pass on these files."""
    import sys

    write(folder, {**files, **row["tests"]})
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    for name in {Path(path).stem for path in files} & set(sys.modules):
        monkeypatch.delitem(sys.modules, name)
    scope: dict[str, Any] = {"__name__": "tests"}
    exec(compile(next(text for path, text in row["tests"].items() if "test_" in path), "t", "exec"), scope)
    try:
        for name in [name for name in scope if name.startswith("test_")]:
            scope[name]()
    except (AssertionError, NotImplementedError):
        return False
    finally:
        for path in files:
            sys.modules.pop(Path(path).stem, None)
    return True


def test_an_exercise_has_its_stub_and_instructions_and_not_its_tests_or_example(tmp_path: Path):
    exercise = "exercises/practice/two-fer"
    config = {"files": {"solution": ["two_fer.py"], "test": ["two_fer_test.py"], "example": [".meta/example.py"]}}
    files = {
        ".meta/config.json": json.dumps(config),
        ".meta/example.py": "def two_fer():\n    return 2",
        ".docs/instructions.md": "# Say it.\n",
        ".docs/instructions.append.md": "Twice.\n",
        "two_fer.py": "def two_fer():\n    pass\n",
        "two_fer_test.py": "import unittest\n",
        "test_utils.py": "x = 1\n",
    }
    (row,) = exercism.rows(write(tmp_path, {f"{exercise}/{path}": text for path, text in files.items()}))
    assert (row["instance_id"], set(row["files"]), set(row["tests"])) == (
        "exercism__two-fer",
        {"two_fer.py", "README.md"},
        {"two_fer_test.py", "test_utils.py"},
    )
    assert "two_fer.py" in row["problem_statement"] and row["problem_statement"].endswith("# Say it.\n\nTwice.")
    assert solved(row)["two_fer.py"] == "def two_fer():\n    return 2\n" and "return 2" not in str(row["files"])


@pytest.mark.parametrize(("slow", "num_cases"), [(False, 1), (True, 2)])
def test_a_program_of_quixbugs_has_its_cases_in_its_test(tmp_path: Path, slow: bool, num_cases: int):
    files = {
        "python_programs/half.py": 'def half(x):\n    return x / 3\n\n\n"""\nHalves.\n"""\n',
        "correct_python_programs/half.py": "def half(x):\n    return x / 2\n",
        "python_programs/node.py": "class Node: pass\n",
        "python_testcases/test_half.py": QUIX_TEST,
        "json_testcases/half.json": "[[4], 2]\n[[1000, [1]], 500]\n",
    }
    (row,) = quixbugs.rows(write(tmp_path, files), slow=slow)
    test = row["tests"]["python_testcases/test_half.py"]
    assert not {"use_correct", "run_slow", "load_testdata", "skip"} & set(ast.unparse(ast.parse(test)).replace(".", " ").split())
    assert len(json.loads(test.partition("json.loads('")[2].partition("')")[0])) == num_cases
    assert "from python_programs.half import half" in test and "Halves." in row["problem_statement"]
    assert "x / 2" in solved(row)["python_programs/half.py"] and "x / 2" not in str(row["files"])


def test_a_problem_of_human_eval_is_checked_with_what_its_prompt_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "HumanEval.jsonl.gz"
    file.write_bytes(gzip.compress(json.dumps(HUMAN_EVAL).encode() + b"\n"))
    (row,) = human_eval.rows(file)
    broken = {"solution.py": solved(row)["solution.py"].replace("return x\n", "return 0\n").replace("2 * x", "0")}
    assert passes(row, solved(row), tmp_path / "solved", monkeypatch)
    assert not passes(row, row["files"], tmp_path / "stub", monkeypatch)
    assert not passes(row, broken, tmp_path / "broken", monkeypatch)  # a changed helper is not the test's


def test_a_problem_of_mbpp_gives_classes_and_asks_for_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    row = mbpp.row_of(MBPP)
    assert "self.a" in row["files"]["solution.py"] and "p.a + p.b" not in row["files"]["solution.py"]
    assert passes(row, solved(row), tmp_path / "solved", monkeypatch)
    assert not passes(row, row["files"], tmp_path / "stub", monkeypatch)


def test_the_splits_of_mbpp_are_apart(tmp_path: Path):
    (file := tmp_path / "mbpp.jsonl").write_text(
        "".join(json.dumps({**MBPP, "task_id": number}) + "\n" for number in (5, 11, 510, 601, 974))
    )
    ids = {split: [row["instance_id"] for row in mbpp.rows(file, split=split)] for split in mbpp.SPLITS}
    assert ids == {
        "train": ["mbpp__601", "mbpp__974"],
        "validation": [],
        "test": ["mbpp__11", "mbpp__510"],
        "prompt": ["mbpp__5"],
    }


def test_rows_of_swe_data_sets_are_read_by_their_own_columns(tmp_path: Path):
    patch = patch_between({"a.py": "x = 1\n"}, {"a.py": "x = 2\n"})
    commit = {
        "old_commit_hash": "a" * 40,
        "file_diffs": [
            {"header": {"file": {"path": path}}, "old_file_content": "x = 1\n", "new_file_content": "x = 2\n"}
            for path in ("a.py", "tests/test_a.py")
        ],
    }
    executed = {"test_file_names": ["test_1.py"], "test_file_codes": ["def test_a(): pass"]}
    lists = {"FAIL_TO_PASS": '["a::b"]', "PASS_TO_PASS": []}
    found = [
        {"instance_id": "o__n-1", "repo": "o/n", "base_commit": "b", "patch": patch, "test_patch": "t", **lists},
        {"instance_id": "o__n.1", "repo": "swesmith/n", "patch": patch, "FAIL_TO_PASS": ["a::b"], "PASS_TO_PASS": []},
        {
            "repo_name": "n",
            "commit_hash": "c" * 40,
            "problem_statement": "It fails.",
            "parsed_commit_content": json.dumps(commit),
            "execution_result_content": json.dumps(executed),
        },
    ]
    (tmp_path / "n").mkdir()
    bench, smith, gym = map(Task.of, swe.rows(found, repositories=tmp_path))
    assert {task.repo for task in (bench, smith, gym)} == {str(tmp_path / "n")}
    assert (bench.patch, bench.base_commit, bench.fail_to_pass) == (patch, "b", ("a::b",))
    assert (smith.bug_patch, smith.patch) == (patch, reverse(patch))
    assert (gym.base_commit, gym.patch, list(gym.tests)) == ("a" * 40, patch, ["r2e_tests/test_1.py"])
