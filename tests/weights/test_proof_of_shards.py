"""Under tensor parallelism each worker proves the part that it holds: two workers, without servers."""

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from vime.cluster.ports import free_port

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parent / "proof_rank.py"
LAYER = "model.layers.1.self_attn"


def test_each_rank_finds_what_is_missing_or_misplaced_in_its_part(two_key_checkpoint: Path):
    environment = {**os.environ, "VLLM_DIST_IDENT": uuid.uuid4().hex, "VLLM_LOGGING_LEVEL": "ERROR", "TORCHDYNAMO_DISABLE": "1"}
    port = free_port("127.0.0.1", 0)
    ranks = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(rank), str(port), str(two_key_checkpoint)],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for rank in ranks:
        output, _ = rank.communicate(timeout=300)
        proofs = [json.loads(line.removeprefix("PROOF ")) for line in output.splitlines() if line.startswith("PROOF ")]
        whole, swapped, *dropped = proofs
        assert whole["wrong"] == whole["unread"] == [] and whole["num_read"] == 25
        assert [line.split(":")[0] for line in swapped["wrong"]] == [f"{LAYER}.{part}_proj.weight" for part in "kv"]
        names = [f"{LAYER}.q_proj.weight", f"{LAYER}.o_proj.weight", "lm_head.weight"]
        assert [found["wrong"] for found in dropped] == [[f"{name}: nothing was loaded"] for name in names]
