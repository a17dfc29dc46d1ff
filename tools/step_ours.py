"""One side of the benchmark of whole steps: this project's system, whose training steps are run when they are asked for.

Ray, a vLLM server, a rollout worker and the trainer run as in a training run, and a step is that of `vime.loop`: groups, rewards,
advantages, update, weights to the server, digest and probe, metrics and rollouts written.
"""

import itertools
import json
import sys
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, redirect_stdout, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
from bench_rows import ROOT
from step_case import MAX_POSITIONS, StepCase
from trainer_case import LR, MAX_TOKENS, SHAPES

from vime.batches import RolloutBatches
from vime.loop import train_step
from vime.preflight.compose import compose_run
from vime.preflight.validation import find_problems
from vime.run_output import RunOutput
from vime.system import Training, training
from vime.types import Prompt

AGENTS = ROOT / "tools" / "step_agents.py"
MANY_STEPS = 1_000_000


KINDS = {"TrainerRank": "trainer", "RolloutWorker": "worker", "vllm": "server"}
"""Words in the command line of a process, each with the kind of the process; all others are the driver and Ray."""
REST = "driver and Ray"


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One step, by the clock and in CPU seconds of all processes.

    Example: `Step(wall=3.1, cpu={"trainer": 2.2, "server": 2.9, "worker": 0.3, "driver and Ray": 0.4}, metrics={…})`.
    """

    wall: float
    cpu: dict[str, float]
    metrics: dict[str, float]

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds of all processes."""
        return sum(self.cpu.values())


class Source:
    """A case's prompts, in their order and without end; agents get the length of their replies."""

    def __init__(self, case: StepCase, first: int) -> None:
        self._case, self._numbers = case, itertools.count()
        self._first = first
        """The first `index`; no two sources of a run give prompts of the same one."""

    def next(self) -> Prompt:
        """The next prompt."""
        case, number = self._case, next(self._numbers)
        first = number % case.num_prompts * case.num_samples
        row = number % len(case.prompts)
        return Prompt(
            index=self._first + number,
            row=row,
            messages=[{"role": "user", "content": case.prompts[row]}],
            ground_truth=[],
            metadata={"work": case.work, "first": first, "replies": case.replies[first : first + case.num_samples]},
        )


class Ours:
    """A running system."""

    def __init__(self, output: RunOutput, system: Training, *, not_ours: Collection[int]) -> None:
        self._output, self.system, self.not_ours = output, system, not_ours
        self._version = 0
        self._batches: RolloutBatches | None = None

    async def begin(self, case: StepCase, *, staleness: int) -> None:
        """Work for the next steps."""
        await self.end()
        config = self._output.config
        config = replace(config, rollout=replace(config.rollout, max_staleness=staleness))
        source, bar = Source(case, first=self._version * MANY_STEPS), self._output.console.rollouts
        workers = self.system.agents.workers
        self._batches = RolloutBatches(config, source, workers, journal=None, state=None, version=self._version, bar=bar)

    async def step(self, *, num_left: int = 1) -> Step:
        """The next step; nothing is generated ahead that the `num_left` next ones, this one included, would not train."""
        assert self._batches is not None
        cpu, started = cpu_times(self.not_ours), time.perf_counter()
        self._batches.begin(self._version, num_left=num_left)
        await train_step(self._output, self.system, self._batches, self._version)
        wall = time.perf_counter() - started
        self._version += 1
        spent = spent_since(cpu, self.not_ours)
        with (self._output.directory.path / "metrics.jsonl").open() as file:
            *_, last = file
        return Step(wall=wall, cpu=spent, metrics=json.loads(last))

    async def end(self) -> None:
        """Ends the present work."""
        if self._batches is not None:
            await self._batches.stop()
            self._batches = None


def cpu_times(not_ours: Collection[int] = ()) -> dict[tuple[str, int], float]:
    """Seconds so far of each process of the system, including this one, by its kind and its number."""
    found: dict[tuple[str, int], float] = {}
    me = psutil.Process()
    for process in [me, *me.children(recursive=True)]:
        if process.pid in not_ours:
            continue
        with suppress(psutil.NoSuchProcess):
            line, times = " ".join(process.cmdline()), process.cpu_times()
            kind = next((kind for word, kind in KINDS.items() if word in line), REST)
            found[kind, process.pid] = times.user + times.system
    return found


def spent_since(before: dict[tuple[str, int], float], not_ours: Collection[int] = ()) -> dict[str, float]:
    """CPU seconds since `before`, by the kind of process."""
    spent = dict.fromkeys([*KINDS.values(), REST], 0.0)
    for (kind, pid), seconds in cpu_times(not_ours).items():
        spent[kind] += seconds - before.get((kind, pid), 0.0)
    return spent


@asynccontextmanager
async def running(
    case: StepCase, checkpoint: Path, *, precision: str, not_ours: Collection[int], words: Collection[str] = ()
) -> AsyncIterator[Ours]:
    """The system on a model, with more `words` of a command line; `case` gives the sizes of a batch.

    Processes `not_ours` are not counted as the system's.
    """
    composed = compose_run([*_words(case, checkpoint, precision), *words], check=find_problems)
    with redirect_stdout(sys.stderr), RunOutput.open(composed) as output:
        async with training(output.config, output.directory.path, say=output.console.say) as system:
            await system.sync(0)
            ours = Ours(output, system, not_ours=not_ours)
            try:
                yield ours
            finally:
                await ours.end()


def _words(case: StepCase, checkpoint: Path, precision: str) -> list[str]:
    """The command line of the run."""
    shape: dict[str, Any] = dict(SHAPES[case.size])
    shape["num_layers"] = shape.pop("num_hidden_layers")
    return [
        "+method=memagent",  # for its data set; agents and rewards are the benchmark's
        f"method.generate={AGENTS}:generate",
        f"method.reward={AGENTS}:reward",
        f"model.checkpoint={checkpoint}",
        "model.family=qwen3",
        f"model.max_position_embeddings={MAX_POSITIONS}",
        *[f"model.{name}={value}" for name, value in shape.items()],
        f"serving.models.actor.max_model_len={MAX_POSITIONS}",
        f"trainer.precision={precision}",
        f"trainer.lr={LR}",
        f"trainer.max_tokens_per_micro_batch={MAX_TOKENS}",
        f"trainer.num_steps={MANY_STEPS}",
        f"trainer.save_every={MANY_STEPS}",
        f"rollout.num_prompts={case.num_prompts}",
        f"rollout.num_samples_per_prompt={case.num_samples}",
        "rollout.max_staleness=1",
        "evaluation.rows=[]",
        f"output_dir={checkpoint.parent / f'run_{case.size}_{precision}'}",
    ]
