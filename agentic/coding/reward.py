"""The reward: hidden tests in a fresh workspace judge the patch that the agent has made."""

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

import orjson

from agentic.coding.config import CodingConfig
from agentic.coding.grading import GradingConfig, fresh_workspaces
from agentic.coding.judged import Judged, key_of
from agentic.coding.task import INSTANCE, STATEMENT, Task
from agentic.coding.verdict import Verdict, judge
from vime.errors import SampleError
from vime.rollout.context import Context
from vime.types import Reward, Sample

PATCH, TASK, VERDICT = "patch", "task", "verdict"
"""Keys in the metadata of a rollout's last sample: the agent's patch and the row, by `generate`; the verdict, by `reward`."""

_judged = Judged()


def row_of(sample: Sample) -> dict[str, Any]:
    """The row of a rollout's template, for `generate` to keep in its last sample as `metadata["task"]`."""
    return {STATEMENT: sample.question, **sample.metadata}


async def reward(context: Context, samples: list[Sample]) -> Reward:
    """1 if all hidden tests pass that should, otherwise 0, or a share of them with `method.grading.partial_credit`.

    Equal patches of a task are judged once. The verdict is stored in the last sample's metadata. A workspace that fails raises
    SandboxError, so that the rollout earns no 0.
    """
    method, metadata = context.config.method, samples[-1].metadata
    config = method.grading if isinstance(method, CodingConfig) else GradingConfig()
    task, patch = task_of(metadata), str(metadata.get(PATCH) or "")
    if patch.strip():
        find = partial(judge, task, patch, open_workspace=fresh_workspaces(context.config.workspace), config=config)
        key = key_of(orjson.dumps(metadata[TASK], option=orjson.OPT_SORT_KEYS, default=str).decode(), patch)
        with context.trace.span("grading", kind="sandbox"):
            verdict = await _judged.verdict(key, find)
    else:
        verdict = Verdict(solved=False, reason="no_patch")
    metadata[VERDICT] = summary_of(verdict)
    return Reward(score=verdict.score(config), metrics=metrics_of(verdict))


def task_of(metadata: Mapping[str, Any]) -> Task:
    """The task of a rollout, from the metadata of its last sample. Raises SampleError if `generate` has not kept the row."""
    row = metadata.get(TASK)
    if not isinstance(row, Mapping) or not row.get(INSTANCE):
        raise SampleError(f'the last sample has no row of a coding task: keep it as metadata["{TASK}"] = row_of(sample)')
    return Task.of(row)


def metrics_of(verdict: Verdict) -> dict[str, float]:
    """Metrics that are averaged over rollouts, each 0 to 1."""
    return {
        "resolved": float(verdict.solved),
        "mended": verdict.mended,
        "kept": verdict.kept,
        "applied": float(verdict.applied not in ("", "empty", "failed", "refused")),
        "tests_touched": float(bool(verdict.touched)),
        "tampered": float(verdict.reason == "tampered"),
    }


def summary_of(verdict: Verdict) -> dict[str, Any]:
    """The verdict as `eval_log` and the journal keep it, without the list of tests that passed."""
    found = asdict(verdict)
    del found["passed"]
    return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}
