"""Step 2, a reward: 1 for a first query about the right table.

    python -m vime.run +experiment=tutorial method.generate=agentic.tutorial.one_call.generate \
        method.reward=agentic.tutorial.first_query.reward trainer.num_steps=4
"""

from vime import Context, Reward, Sample


async def reward(context: Context, samples: list[Sample]) -> Reward:
    """The score is trained; the metrics are averaged as `reward/calls` and `reward/right_table`."""
    said = samples[-1].response  # without special tokens, such as the tags around a call
    table = "owners" if samples[-1].metadata["question"].startswith("What") else "prices"
    right = f"FROM {table} WHERE" in said
    return Reward(score=float(right), metrics={"calls": float('"name": "query"' in said), "right_table": float(right)})
