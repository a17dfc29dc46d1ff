"""The baseline row of every table: the model asked once, without a scaffold. It is also a complete single-turn method."""

from vime.rollout.context import Context, Sampling
from vime.types import Sample, StopReason


async def generate(context: Context, sample: Sample, sampling: Sampling) -> Sample:
    """One reply to the prompt, as long as the context allows."""
    model = context.models["actor"]
    assert isinstance(sample.prompt, list), f"prompt is a {type(sample.prompt).__name__}, not messages"
    turn = await model.conversation(sample.prompt).reply()
    (result,) = context.samples(sample)
    result.stop_reason = StopReason.TOKEN_LIMIT if turn.finish_reason == "length" else StopReason.ANSWERED
    return result
