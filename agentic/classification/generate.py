"""The rollout of classification: one completion. An evaluation also asks for the likeliest one, and for the likeliest class.

The likeliest class is what a classifier would say that knows the names of the classes; it shows how much of a gain is the form of
the answer and how much is the decision.
"""

from dataclasses import replace
from typing import Any

from agentic.classification.config import TEXT, ClassificationConfig
from vime.rollout.context import Context, Sampling
from vime.trajectory.plain_text import control_tokens
from vime.types import Sample, StopReason


async def generate(context: Context, sample: Sample, sampling: Sampling) -> Sample:
    """One sample: the prompt and its completion."""
    method, model = ClassificationConfig.of(context.config), context.models["actor"]
    token_ids = control_tokens(model.tokenizer).encode_plain(method.template.replace(TEXT, sample.question))
    limits: dict[str, Any] = {"max_tokens": min(method.max_tokens, model.max_model_len - len(token_ids)), "stop": (*method.stop,)}
    turn = await model.complete(token_ids, **limits)
    said: dict[str, str] = {}
    if context.evaluation:
        greedy = replace(model.untrained, temperature=0.0)
        said["greedy"] = (await greedy.complete(token_ids, **limits)).text
        choices = {"choice": [f" {label}" for label in method.labels]}
        said["likeliest"] = (await greedy.complete(token_ids, **limits, constraint=choices)).text
    (answer,) = context.samples(sample, said=said)
    answer.stop_reason = StopReason.TOKEN_LIMIT if turn.finish_reason == "length" else StopReason.ANSWERED
    return answer
