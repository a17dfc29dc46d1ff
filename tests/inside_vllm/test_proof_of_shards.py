"""Under tensor parallelism each worker proves the part that it holds: two workers, without servers."""

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from vime.cluster.ports import free_port
from vime.files.jsonl import read_lines

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "proof_ranks.py"
LAYER = "model.layers.1.self_attn"


def test_each_rank_finds_what_is_missing_or_misplaced_in_its_part(two_key_checkpoint: Path, tmp_path: Path):
    environment = {**os.environ, "VLLM_DIST_IDENT": uuid.uuid4().hex, "VLLM_LOGGING_LEVEL": "ERROR", "TORCHDYNAMO_DISABLE": "1"}
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    words = [str(free_port("127.0.0.1", 0)), str(two_key_checkpoint), str(tmp_path)]
    done = subprocess.run([sys.executable, str(SCRIPT), *words], env=environment, stderr=subprocess.PIPE, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-6000:]
    for rank in range(2):
        lines = list(read_lines(tmp_path / f"rank{rank}.jsonl"))
        for whole, swapped, *dropped in (lines[: len(lines) // 2], lines[len(lines) // 2 :]):  # beside the model, in place
            assert whole["wrong"] == whole["unread"] == [] and whole["num_read"] == 25
            assert [line.split(":")[0] for line in swapped["wrong"]] == [f"{LAYER}.{part}_proj.weight" for part in "kv"]
            names = [f"{LAYER}.q_proj.weight", f"{LAYER}.o_proj.weight", "lm_head.weight"]
            assert [found["wrong"] for found in dropped] == [[f"{name}: nothing was loaded"] for name in names]
