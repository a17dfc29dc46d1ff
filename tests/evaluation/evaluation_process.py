"""An evaluation whose process kills itself after some items; `test_evaluation.py` starts it again and again.

    python tests/evaluation/evaluation_process.py RUN_FOLDER ROWS_FILE NUM_ITEMS_TO_LIVE SEED

The model is a script of random waits, so that items finish in another order every time: what is tested is the protocol.
"""

import asyncio
import os
import random
import signal
import sys
from pathlib import Path

import yaml

from vime.config import DataConfig, DatasetConfig, EvaluationConfig, Mode, RunConfig
from vime.evaluation.conditions import rows_of
from vime.evaluation.evaluator import Evaluator, Job
from vime.files.provenance import plain
from vime.types import Prompt, Rollout, StopReason


class Runner:
    """Answers at random, and kills the process after `left` items."""

    def __init__(self, left: int, seed: int) -> None:
        self.left, self.random = left, random.Random(seed)

    async def run_item(self, *, prompt: Prompt, row: str, temperature: float, version: int, run: int) -> Rollout:
        """One item."""
        await asyncio.sleep(self.random.random() / 500)
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1
        reason = StopReason.SERVER_LOST if self.random.random() < 0.1 else StopReason.ANSWERED
        reward = float(reason is StopReason.ANSWERED and self.random.random() < 0.5)
        return Rollout(rollout_id=0, group_index=0, reward=reward, stop_reason=reason)


def make_config(rows_file: str) -> RunConfig:
    """Two data sets, two rows, two runs."""
    sets = [DatasetConfig(name=name, path=rows_file, num_items=size) for name, size in (("short", 7), ("long", 11))]
    evaluation = EvaluationConfig(max_concurrent_items=3, num_runs=2)
    return RunConfig(mode=Mode.eval, data=DataConfig(evaluation=sets), evaluation=evaluation)


async def main(folder: Path, rows_file: str, left: int, seed: int) -> None:
    """Runs what is missing, row after row as a run does."""
    config = make_config(rows_file)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(plain(config)))
    evaluator = Evaluator(config, runner=Runner(left, seed), folder=folder / "evaluation")
    for row in rows_of(config):
        jobs = [Job(dataset=name, row=row, run=run, temperature=1.0) for name in ("short", "long") for run in range(2)]
        await evaluator.run(jobs, version=0)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
