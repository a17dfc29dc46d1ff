"""Step 5, sub-agents: three of them work on the question at the same time, and the answer is that of the majority.

    python -m vime.run +experiment=tutorial method.generate=agentic.tutorial.sub_agents.generate \
        method.reward=agentic.tutorial.sub_agents.reward trainer.num_steps=4
"""

import asyncio
from collections import Counter

from agentic.database.agents import database
from agentic.tutorial.one_call import SYSTEM
from vime import Context, Reward, Sample, Sampling, ToolBox


async def generate(context: Context, sample: Sample, sampling: Sampling) -> list[Sample]:
    """One sample for each conversation: every sampled token is trained once, no matter which agent has asked for it."""

    def query(sql: str) -> str:
        """Asks the database."""
        return database.query(sample.metadata, sql)

    async def solve() -> str:
        toolbox = ToolBox(context, [query], max_calls=6)
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": sample.question}]
        talk = context.models["actor"].conversation(messages, tools=toolbox.schemas)
        while calls := (turn := await talk.reply(max_tokens=64)).tool_calls:
            talk.add(await toolbox.results(calls))
        return turn.text.strip()

    answers = await asyncio.gather(solve(), solve(), solve())
    return context.samples(sample, answer=Counter(answers).most_common(1)[0][0])


async def reward(context: Context, samples: list[Sample]) -> Reward:
    """The score is the group's; each conversation is trained on its own."""
    label = samples[-1].label[0]
    own = [float(sample.response.strip() == label) for sample in samples]
    return Reward(score=float(samples[-1].metadata.get("answer") == label), samples=own)
