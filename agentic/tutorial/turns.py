"""Step 4, several turns: the user asks a second question in the same conversation. Nothing is tokenized twice.

    python -m vime.run +experiment=tutorial method.generate=agentic.tutorial.turns.generate \
        method.reward=agentic.tutorial.turns.reward trainer.num_steps=4
"""

from agentic.database.agents import database
from agentic.tutorial.one_call import SYSTEM
from vime import Context, Sample, Sampling, ToolBox


async def generate(context: Context, sample: Sample, sampling: Sampling) -> list[Sample]:
    """Two questions, each answered with as many queries as the model likes."""

    def query(sql: str) -> str:
        """Asks the database."""
        return database.query(sample.metadata, sql)

    toolbox = ToolBox(context, [query], max_calls=8)
    talk = context.models["actor"].conversation([{"role": "system", "content": SYSTEM}], tools=toolbox.schemas)
    thing, price = next(iter(sample.metadata["prices"].items()))
    right = []
    for question, answer in ((sample.question, sample.label[0]), (f"What does the {thing} cost ?", str(price))):
        talk.add([{"role": "user", "content": question}])
        while calls := (turn := await talk.reply(max_tokens=64)).tool_calls:
            talk.add(await toolbox.results(calls))
        right.append(turn.text.strip() == answer)
    return context.samples(sample, right=right)


async def reward(context: Context, samples: list[Sample]) -> float:
    """The share of right answers."""
    return sum(samples[-1].metadata.get("right", ())) / 2
