"""An agent with a long tail, for `tools/bench_async.py`: MemAgent that first calls a tool which takes log-normal time."""

import asyncio
import os
import random

from agentic.memagent import generate as memagent
from vime.rollout.context import Context, Sampling
from vime.rollout.tool import run_tool
from vime.types import Sample

MEDIAN_SECONDS = float(os.environ.get("VIME_TAIL_MEDIAN_SECONDS", "0.5"))
SIGMA = float(os.environ.get("VIME_TAIL_SIGMA", "1.0"))
"""The standard deviation of the logarithm: with 1, one call in a hundred takes ten times the median."""


async def generate(context: Context, sample: Sample, sampling: Sampling) -> list[Sample]:
    """The tool's time depends on the rollout alone, so that every mode waits for the same."""
    seconds = tool_seconds(sample.rollout_id)
    await run_tool(context, "sleep", asyncio.sleep, seconds)
    return await memagent.generate(context, sample, sampling)


def tool_seconds(rollout_id: int, *, median_seconds: float = MEDIAN_SECONDS, sigma: float = SIGMA) -> float:
    """Seconds that the tool takes in this rollout."""
    return random.Random(rollout_id).lognormvariate(0.0, sigma) * median_seconds
