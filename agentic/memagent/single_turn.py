"""The single-turn baseline: the document in one prompt, without its middle if the context is too short for all of it."""

from agentic.memagent.config import MemAgentConfig
from agentic.memagent.generate import document_of
from agentic.memagent.prompts import SINGLE_TURN
from vime.rollout.context import Context, Sampling
from vime.types import Sample, StopReason

LONGEST_TOKEN = 64
"""Characters of a token; hardly any token is longer."""
MARGIN_TOKENS = 8
"""Tokens reserved because the text around the cut may tokenize into a few more tokens than its halves."""


async def generate(context: Context, sample: Sample, sampling: Sampling) -> Sample:
    """One reply to the question and the document."""
    method = MemAgentConfig.of(context.config)
    model = context.models["actor"]
    problem, prompt = sample.question, SINGLE_TURN[method.answer_form(evaluation=context.evaluation)]
    frame = model.render([{"role": "user", "content": prompt.format(problem=problem, chunk="")}])
    room = model.max_model_len - len(frame) - method.max_single_turn_tokens - MARGIN_TOKENS
    document = document_of(sample)
    ends = room * LONGEST_TOKEN  # no more of a long document can be needed
    if len(document) > 2 * ends:
        document = document[:ends] + document[-ends:]
    document_ids = model.tokenizer.encode(document, add_special_tokens=False)
    if len(document_ids) > room:
        head = room // 2
        document = model.tokenizer.decode(document_ids[:head]) + model.tokenizer.decode(document_ids[head - room :])
    content = prompt.format(problem=problem, chunk=document)
    turn = await model.chat([{"role": "user", "content": content}], max_tokens=method.max_single_turn_tokens)
    (answer,) = context.samples(sample, num_chunks=0, metric=sample.metadata.get("metric"))
    answer.stop_reason = StopReason.TOKEN_LIMIT if turn.finish_reason == "length" else StopReason.ANSWERED
    return answer
