"""Step 1, one call: the agent asks the trained model, and everything that the model sampled becomes a sample to train on.

python -m vime.run +experiment=tutorial method.generate=agentic.tutorial.one_call.generate mode=try
"""

from vime import Context, Sample, Sampling

SYSTEM = "Ask the database . owners ( name , thing ) prices ( thing , price )"


async def generate(context: Context, sample: Sample, sampling: Sampling) -> list[Sample]:
    """One rollout. `sample` is a row of the data; `context.samples` makes the trained sequences of all calls."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": sample.question}]
    await context.models["actor"].chat(messages, max_tokens=64)
    return context.samples(sample, question=sample.question)  # what the reward is to know goes into the metadata
