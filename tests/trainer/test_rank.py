"""The process of a trainer rank: what it imports, and what of that stays behind in the folder for temporary files."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

IMPORTS = """
import os, sys
from vime.trainer.rank import import_megatron
import_megatron()
assert "megatron.core.timers" in sys.modules
assert not [name for name in os.listdir(os.environ["TMPDIR"]) if "wandb" in name]
import wandb
assert wandb.Settings, "a user's loss can import it"
"""


@pytest.mark.slow
def test_megatron_leaves_no_folders_of_wandb_behind(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    command = [sys.executable, "-c", IMPORTS]
    found = subprocess.run(command, env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True, text=True, timeout=600)
    assert found.returncode == 0, found.stderr


def test_the_driver_reads_a_ranks_answer_without_megatron() -> None:
    lines = [
        "import pickle, sys",
        "import vime.trainer.group, vime.trainer.learner",
        "from vime.trainer.metrics import Passed",
        "pickle.loads(pickle.dumps(Passed(sums={})))",
        "print([name for name in ('megatron', 'vime.trainer.engine') if name in sys.modules])",
    ]
    found = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
