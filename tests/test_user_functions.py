"""A user's own functions, from a file outside the repository, drive a real run in place of the method's and the engine's."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.in_turn]
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
    await context.models["actor"].chat(sample.prompt, max_tokens=4)
    return context.samples(sample)


async def reward(context, samples):
    mark("reward")
    return Reward(score=0.5, metrics={"strict": 0.25})


async def function(context, prompt, num_rollouts):
    mark("function")
    group = Group(prompt=prompt)
    for member in range(num_rollouts):
        talk = context.models["actor"].conversation(prompt.messages)
        await talk.reply(max_tokens=4)
        rollout = Rollout(rollout_id=0, group_index=0, reward=float(member), stop_reason=StopReason.ANSWERED)
        rollout.samples = talk.samples(Sample(prompt=prompt.messages))
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


@pytest.mark.long
def test_functions_of_the_user_replace_ours(tmp_path: Path):
    file = tmp_path / "mine.py"
    file.write_text(SOURCE)
    (tmp_path / "marks").mkdir()
    names = {
        "method.generate": "generate",
        "method.reward": "reward",
        "rollout.group_function": "function",
        "data.source": "source",
    }
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


OWN = '''
"""An orchestration of its own, and a generate that scores itself, as slime's users write them."""

import asyncio
from pathlib import Path

LOG = Path(__file__).parent / "log"


def note(text):
    with LOG.open("a") as file:
        file.write(text + "\\n")


class Hardest:
    """Runs twice the prompts of a batch and trains the half that went worst."""

    def __init__(self, config, source, runner):
        self.config, self.source, self.runner, self.num_batches = config.rollout, source, runner, 0

    async def batch(self, version):
        prompts = [self.source.next() for _ in range(2 * self.config.num_prompts)]
        groups = await asyncio.gather(*[self.runner.run_group(prompt) for prompt in prompts])
        groups.sort(key=lambda group: sum(rollout.reward for rollout in group.rollouts))
        self.num_batches += 1
        note(f"batch {version}: {self.num_batches}, prompts {prompts[0].index} to {prompts[-1].index}")
        return groups[: self.config.num_prompts]

    def state(self):
        return {"num_batches": self.num_batches}

    def load(self, state):
        self.num_batches = state["num_batches"]

    async def stop(self):
        note("stopped")


async def generate(context, sample, sampling):
    turn = await context.models["actor"].chat(sample.prompt, max_tokens=4)
    (first,) = context.samples(sample)
    (second,) = context.samples(sample)
    first.reward, second.reward = 0.0, float(len(turn.output_ids) % 2)
    second.status = "truncated"
    return [first, second]
'''


@pytest.mark.long
def test_a_class_of_the_user_replaces_the_whole_orchestration_and_is_resumed(tmp_path: Path):
    file = tmp_path / "mine.py"
    file.write_text(OWN)
    command = [
        *(sys.executable, "-m", "vime.run", "+method=memagent", f"output_dir={tmp_path / 'run'}", "method.reward=null"),
        *(f"rollout.producer={file}:Hardest", f"method.generate={file}:generate", "evaluation.rows=[]"),
        *("rollout.num_prompts=2", "rollout.num_samples_per_prompt=2", "trainer.save_every=1", "rollout.max_staleness=1"),
    ]
    for words in (["trainer.num_steps=1"], ["trainer.num_steps=2", "resume=true"]):
        finished = subprocess.run([*command, *words], capture_output=True, text=True, timeout=400)
        assert finished.returncode == 0, finished.stdout + finished.stderr
    assert (tmp_path / "log").read_text().splitlines() == [
        "batch 0: 1, prompts 0 to 3",
        "stopped",
        "batch 1: 2, prompts 4 to 7",
        "stopped",
    ]
    steps = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [step["rollout/num_groups"] for step in steps] == [2.0, 2.0]
    assert [step["stop/token_limit"] for step in steps] == [4.0, 4.0]
