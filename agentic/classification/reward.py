"""The reward of classification: 1 if the completion is the name of the right class and nothing else."""

from agentic.classification.config import ClassificationConfig
from vime.rollout.context import Context
from vime.types import Reward, Sample


async def reward(context: Context, samples: list[Sample]) -> Reward:
    """`strict` is 1 for the name alone; `lenient` is also 1 if it is the first class name in the completion."""
    labels, sample = ClassificationConfig.of(context.config).labels, samples[-1]
    label, reply = sample.label[0], sample.response
    metrics = {"strict": float(reply.strip() == label), "lenient": float(first_label(reply, labels) == label)}
    metrics |= {name: float(text.strip() == label) for name, text in sample.metadata["said"].items()}
    return Reward(score=metrics["strict"], metrics=metrics | {"form": float(reply.strip() in labels)})


def first_label(text: str, labels: list[str]) -> str | None:
    """The class whose name comes first in a text, in any case; the longer name if two begin at the same place."""
    lower = text.lower()
    there = [(lower.index(label.lower()), -len(label), label) for label in labels if label.lower() in lower]
    return min(there)[-1] if there else None
