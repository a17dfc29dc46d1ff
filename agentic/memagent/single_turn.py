"""The baseline without a scaffold: the whole document in one prompt, its middle cut out where the context is too short."""

from agentic.memagent.config import MemAgentConfig
from agentic.memagent.generate import document_of
from agentic.memagent.prompts import SINGLE_TURN_PROMPT
from vime.rollout.context import Context, Sampling
from vime.types import Sample, StopReason

LONGEST_TOKEN = 64
"""Characters; hardly any token is longer."""
MARGIN_TOKENS = 8
"""Text around a cut may tokenize into a few more tokens than its halves."""


async def generate(context: Context, sample: Sample, sampling: Sampling) -> Sample:
    """One reply to question and document, at most as long as the answers of the scaffold."""
    method = MemAgentConfig.of(context.config)
    model = context.models["actor"]
    problem = sample.question
    frame = model.render([{"role": "user", "content": SINGLE_TURN_PROMPT.format(problem=problem, chunk="")}])
    room = model.max_model_len - len(frame) - method.max_single_turn_tokens - MARGIN_TOKENS
    document = document_of(sample)
    ends = room * LONGEST_TOKEN  # no more of a long document can be needed
    if len(document) > 2 * ends:
        document = document[:ends] + document[-ends:]
    document_ids = model.tokenizer.encode(document, add_special_tokens=False)
    if len(document_ids) > room:
        head = room // 2
        document = model.tokenizer.decode(document_ids[:head]) + model.tokenizer.decode(document_ids[head - room :])
    content = SINGLE_TURN_PROMPT.format(problem=problem, chunk=document)
    turn = await model.chat([{"role": "user", "content": content}], max_tokens=method.max_single_turn_tokens)
    answer = sample.with_turn(turn, num_chunks=0, metric=sample.metadata.get("metric"))
    answer.stop_reason = StopReason.TOKEN_LIMIT if turn.finish_reason == "length" else StopReason.ANSWERED
    return answer
