"""A rehearsal on real servers and a real trainer: forced tokens, logprobs that agree, what occurred, and the table."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "tools"))
from make_tables import main as make_tables

ROOT = Path(__file__).parent.parent
WORDS = ["+experiment=search_r1_qwen2.5_3b", "rehearse=true", "model.vocab_size=1024", "evaluation.rows=[trained]"]
"""A small vocabulary takes the tokenizer of bytes, which every machine can make."""


@pytest.mark.long
@pytest.mark.in_turn
def test_an_experiment_of_a_paper_is_rehearsed_to_its_table(tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-m", "vime.run", *WORDS, f"output_dir={run}"]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=900, env={**os.environ, "PYTHONPATH": path}
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    outcome = json.loads((run / "rehearsal.json").read_text())
    assert outcome["absent"] == {} and set(outcome["counts"]["turn"]) == {"search", "gold answer found", "invalid turn"}
    assert "REHEARSAL" in (run / "rehearsal.md").read_text() and "| rehearsal: " in outcome["table"]
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in metrics if "train/logprob_difference_max" in row]
    assert len(steps) == 2 and all(row["train/logprob_difference_max"] < 1e-3 for row in steps)
    rollout = json.loads((run / "rollouts" / "step_000001.jsonl").read_text().splitlines()[0])
    assert "<think>" in rollout["samples"][0]["response"]
    with pytest.raises(SystemExit):
        make_tables(["search_r1", str(run)])
