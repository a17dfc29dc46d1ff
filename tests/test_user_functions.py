"""A user's own functions, from a file outside the repository, drive a real run in place of the method's and the engine's."""

import json
import subprocess
import sys
from pathlib import Path

SOURCE = '''
"""One file with every function that a run can be given; each leaves a mark when it is called."""

from pathlib import Path

import torch

from vime.data.source import RowSource
from vime.types import Group, Reward, Rollout, Sample, StopReason

MARKS = Path(__file__).parent / "marks"


def mark(name):
    (MARKS / name).touch()


class source(RowSource):
    def next(self):
        mark("source")
        return super().next()


async def generate(context, sample, sampling):
    mark("generate")
    turn = await context.models["actor"].chat(sample.prompt, max_tokens=4)
    return sample.with_turn(turn)


async def reward(context, samples):
    mark("reward")
    return Reward(score=0.5, metrics={"strict": 0.25})


async def function(context, prompt, num_rollouts):
    mark("function")
    group = Group(prompt=prompt)
    for member in range(num_rollouts):
        turn = await context.models["actor"].chat(prompt.messages, max_tokens=4)
        rollout = Rollout(rollout_id=0, group_index=0, reward=float(member), stop_reason=StopReason.ANSWERED)
        rollout.samples = [Sample(prompt=prompt.messages).with_turn(turn)]
        group.rollouts.append(rollout)
    return group


def keep(config, group):
    mark("filter")
    return True


def advantage(config, groups):
    mark("advantage")
    return {r.rollout_id: r.reward - 0.5 for group in groups for r in group.rollouts}


def eval_log(context, results):
    mark("eval_log")
    raise ValueError(f"{context.config.name} has {len(results)} results, and this function is broken")


def loss(config, logprobs, old_logprobs, advantages, mask, sequences):
    mark("loss")
    return -advantages * torch.exp(logprobs - old_logprobs), {}
'''


def test_functions_of_the_user_replace_ours(tmp_path: Path):
    file = tmp_path / "mine.py"
    file.write_text(SOURCE)
    (tmp_path / "marks").mkdir()
    names = {"method.generate": "generate", "method.reward": "reward", "rollout.function": "function", "data.source": "source"}
    names |= {
        "rollout.filter": "keep",
        "algorithm.advantage": "advantage",
        "algorithm.loss": "loss",
        "method.eval_log": "eval_log",
    }
    command = [
        *(sys.executable, "-m", "vime.run", "+method=memagent", f"output_dir={tmp_path / 'run'}"),
        *(f"{key}={file}:{name}" for key, name in names.items()),
        *("trainer.num_steps=2", "rollout.num_prompts=2", "rollout.num_samples_per_prompt=2"),
        *("evaluation.rows=[scaffold]", "evaluation.num_runs=1", "evaluation.extra_temperatures=[]"),
        *(f"data.evaluation.{number}.num_items=4" for number in range(3)),
    ]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    wanted = {"generate", "reward", "function", "source", "filter", "advantage", "loss", "eval_log"}
    assert {path.name for path in (tmp_path / "marks").iterdir()} == wanted
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["datasets"]["docs_20"]["scaffold"]["mean"] == 25.0
    steps = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [step["reward/mean"] for step in steps] == [0.5, 0.5]
