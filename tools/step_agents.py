"""The agents of `tools/bench_step.py`: one reply, or several with a tool between them, as long as the case says."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent))  # a worker loads this file by its path

from step_case import SINGLE, TOOL, query_of, reward_of, search

from vime.rollout.context import Context, Sampling
from vime.rollout.tool import run_tool
from vime.types import Sample


async def generate(context: Context, sample: Sample, sampling: Sampling) -> list[Sample]:
    """The rollout that the prompt's metadata describe: `work`, `first` (its group's first rollout in a batch), `replies`."""
    about, model = sample.metadata, context.models["actor"]
    member = sample.member % len(about["replies"])
    replies = about["replies"][member]
    assert isinstance(sample.prompt, list), type(sample.prompt)
    if about["work"] == SINGLE:
        await model.complete(model.render(sample.prompt), max_tokens=replies[0])
        return context.samples(sample)
    conversation = model.conversation(sample.prompt, tools=[TOOL], parses=False)
    for turn, tokens in enumerate(replies):
        if turn:
            found = await run_tool(context, "search", search, query_of(about["first"] + member, turn - 1))
            conversation.add([{"role": "tool", "name": "search", "content": found.output}])
        await conversation.reply(max_tokens=tokens)
    return context.samples(sample)


async def reward(context: Context, samples: list[Sample]) -> float:
    """Any number."""
    return reward_of(samples[-1].response)
