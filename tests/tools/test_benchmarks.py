"""The benchmark programs run on a very small case and write rows of the shared format. Nothing about durations."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.qwen3_tokenizer import qwen3_tokenizer

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
FIELDS = {"benchmark", "case", "ours", "reference", "ratio", "unit"}
IN_PAIRS = FIELDS | {"interval"}


def run(program: str, *words: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-W", "ignore", str(ROOT / "tools" / program), *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Rows that have all fields, positive numbers, and a ratio that is that of the two numbers."""
    rows = json.loads(path.read_text())
    assert rows
    for row in rows:
        assert set(row) == FIELDS, row
        assert row["ours"] > 0 and row["reference"] > 0, row
        assert row["ratio"] == pytest.approx(row["ours"] / row["reference"]), row
    return rows


def test_packing_meets_its_goals_and_says_where_its_numbers_come_from(tmp_path: Path):
    done = run(
        "bench_packing.py",
        "--rollouts",
        32,
        "--ranks",
        1,
        4,
        "--json",
        tmp_path / "rows.json",
        "--markdown",
        tmp_path / "rows.md",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = read_rows(tmp_path / "rows.json")
    assert {row["case"].partition(",")[0] for row in rows} == {"MemAgent", "AgentFlow", "ToolOrchestra", "all in one batch"}
    page = (tmp_path / "rows.md").read_text()
    assert "Goals met everywhere" in page and "GFLOP/s" in page and "load average" in page
    assert "tools/bench_packing.py --rollouts 32" in page and str(tmp_path) not in page


def test_packing_ends_with_1_and_names_what_it_missed():
    done = run("bench_packing.py", "--rollouts", 1, "--ranks", 8)  # too few sequences for as many ranks
    assert done.returncode == 1 and "the goal is" in done.stdout, done.stdout + done.stderr


@pytest.mark.long
def test_the_trainer_is_measured_beside_hugging_face_and_the_matrix_products(tmp_path: Path):
    words = ["--sizes", "tiny", "--cases", "MemAgent", "--samples", 6, "--repeats", 1, "--threads", 1]
    done = run("bench_trainer.py", *words, "--json", tmp_path / "rows.json")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = read_rows(tmp_path / "rows.json")
    ours_and = [row["case"].partition(": ")[2] for row in rows if row["case"].startswith("tiny bfloat16")]
    assert ours_and == ["Hugging Face, padded", "Hugging Face, padded, by the clock", "matrix products alone"]
    assert "TRL was not run" in done.stdout and "(`--mfu`) was not run" in done.stdout


@pytest.mark.long
def test_the_gateway_is_measured_over_a_scripted_engine(tmp_path: Path):
    qwen3_tokenizer()
    words = ["--small", "--rounds", 1, "--no-vllm", "--peers", tmp_path, "--json", tmp_path / "rows.json"]
    done = run("bench_gateway.py", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    cases = [row["case"] for row in read_rows(tmp_path / "rows.json")]
    assert [case.partition(",")[0] for case in cases] == ["2", "streamed"], cases
    assert "failed" not in done.stdout and "2,000 tokens of history: of a call of ours the engine takes" in done.stdout


@pytest.mark.long
def test_the_gateway_is_measured_beside_that_of_another_checkout(tmp_path: Path):
    qwen3_tokenizer()
    done = run("bench_gateway.py", "--small", "--against", ROOT, "--pairs", 1, "--json", tmp_path / "rows.json")
    assert done.returncode in (0, 1), done.stdout + done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert {row["case"].partition(",")[0].partition(":")[0] for row in rows} >= {"2 sessions", "streamed"}
    assert all(set(row) == IN_PAIRS and row["interval"] == [row["ratio"], row["ratio"]] for row in rows), "of one pair"


@pytest.mark.long
def test_a_batch_in_the_driver_and_rollouts_in_flight_are_measured():
    for words, num_tokens in ((["--batch", 1, "--ranks", 2], "0.5 M tokens"), (["--sizes", 80], "80 rollouts in flight")):
        done = run("bench_scale.py", *words, "--numbers")
        assert done.returncode == 0, done.stdout + done.stderr
        numbers = json.loads(done.stdout.splitlines()[-1])
        assert all(name.startswith(num_tokens) and number["is_cost"] for name, number in numbers.items()), numbers
        assert any(number["unit"] in ("bytes per token", "KiB per rollout") for number in numbers.values())


def test_a_side_that_dies_is_named_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    from side_turns import Side

    (tmp_path / "dead_side.py").write_text("import a_library_that_is_not_there")
    side = Side([sys.executable, str(tmp_path / "dead_side.py")], num_threads=1)
    with pytest.raises(RuntimeError, match=r"dead_side\.py ended with 1(.|\n)*No module named 'a_library_that_is_not_there'"):
        side.begin(tmp_path)


def test_workspaces_are_measured_beside_plain_copies(tmp_path: Path):
    done = run("bench_workspace.py", "--seconds", 0.2, "--rounds", 1, "--alive", 3, "--json", tmp_path / "rows.json")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = read_rows(tmp_path / "rows.json")
    assert [row["case"].partition(" ")[0] for row in rows] == ["beside", "beside", "3"]
