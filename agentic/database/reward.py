"""The reward of a question about a database: 1 if the agent's last words are the answer."""

from vime.rollout.context import Context
from vime.types import Reward, Sample


async def reward(context: Context, samples: list[Sample]) -> Reward:
    """`strict` is 1 for the answer alone, `lenient` if it is the last word that the agent returned or printed."""
    said, label = str(samples[-1].metadata.get("output") or "").strip(), samples[-1].label[0]
    strict = float(said == label)
    return Reward(score=strict, metrics={"strict": strict, "lenient": float(said.split()[-1:] == [label])})
