"""Step 3, a tool: a function that the model calls by its name until it answers in words.

    python -m vime.run +experiment=tutorial method.generate=agentic.tutorial.tool.generate \
        method.reward=agentic.tutorial.tool.reward trainer.num_steps=4
"""

from agentic.database.agents import database
from agentic.tutorial.one_call import SYSTEM
from vime import Context, Sample, Sampling, ToolBox


async def generate(context: Context, sample: Sample, sampling: Sampling) -> list[Sample]:
    """Asks, answers the calls, and asks again. The model sees the error of a failed tool; a seventh call ends the rollout."""

    def query(sql: str) -> str:
        """Asks the database."""
        return database.query(sample.metadata, sql)

    toolbox = ToolBox(context, [query], max_calls=6)
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": sample.question}]
    talk = context.models["actor"].conversation(messages, tools=toolbox.schemas)
    while calls := (turn := await talk.reply(max_tokens=64)).tool_calls:
        talk.add(await toolbox.results(calls))
    return context.samples(sample, answer=turn.text.strip())


async def reward(context: Context, samples: list[Sample]) -> float:
    """1 for the answer; a rollout that a limit has ended has none."""
    return float(samples[-1].metadata.get("answer") == samples[-1].label[0])
