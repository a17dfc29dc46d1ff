"""The single-turn baseline: the model answers without a search engine."""

from agentic.search_r1.generate import play
from vime.rollout.context import Context, Sampling
from vime.types import Sample


async def generate(context: Context, sample: Sample, sampling: Sampling) -> Sample:
    """One reply to the question alone."""
    return await play(context, sample, max_turns=0)
