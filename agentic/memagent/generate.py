"""MemAgent's rollout (arXiv 2507.02259, section 3): read chunk by chunk into a memory, then answer from the memory alone.

Every turn is a new conversation of one user message and becomes a training sequence of its own, whose sampled tokens are all
trained. The memory is the model's whole reply, cut at its token limit.
"""

from pathlib import Path
from typing import Any

from agentic.memagent.chunks import Splitter
from agentic.memagent.config import MemAgentConfig
from agentic.memagent.prompts import FINAL, MEMORY_PROMPT, NO_MEMORY
from vime.data.dataset import CONTEXT_FILE
from vime.grading.qa import gold_in_prediction
from vime.rollout.context import Context, Sampling
from vime.types import Sample, StopReason

CHARACTERS_LOGGED = 2_000
"""Characters of each memory that the metadata keep for readers of rollouts."""
SPLITTER = Splitter()


async def generate(context: Context, sample: Sample, sampling: Sampling) -> list[Sample]:
    """One sample per chunk, and one for the answer."""
    method = MemAgentConfig.of(context.config)
    model = context.models["actor"]
    problem = sample.question
    chunks = SPLITTER.split(
        document_of(sample),
        tokenizer=model.tokenizer,
        chunk_tokens=method.chunk_tokens,
        max_chunks=method.max_chunks,
        chunk_at=method.chunk_at,
    )
    memory, notes = NO_MEMORY, list[dict[str, Any]]()
    for number, chunk in enumerate(chunks):
        content = MEMORY_PROMPT.format(problem=problem, memory=memory, chunk=chunk)
        turn = await model.chat([{"role": "user", "content": content}], max_tokens=method.max_memory_tokens)
        reply, num_tokens, is_longer = cap(turn.text.strip(), model.tokenizer, method.max_memory_tokens)
        memory = reply if reply or not method.keep_memory else memory
        about = {
            "turn": number,
            "cut": turn.finish_reason == "length" or is_longer,
            "memory": memory[:CHARACTERS_LOGGED],
            "memory_tokens": num_tokens,
            "holds_gold": gold_in_prediction(memory, sample.label),
            "empty": not reply,
        }
        notes.append(about)
    content = FINAL[method.answer_form(evaluation=context.evaluation)].format(problem=problem, memory=memory)
    turn = await model.chat([{"role": "user", "content": content}], max_tokens=method.max_final_tokens)
    notes.append({"turn": len(chunks), "num_chunks": len(chunks), "metric": sample.metadata.get("metric")})
    samples = context.samples(sample)
    for each, about in zip(samples, notes, strict=True):
        each.metadata = about
    samples[-1].stop_reason = StopReason.TOKEN_LIMIT if turn.finish_reason == "length" else StopReason.ANSWERED
    return samples


def cap(text: str, tokenizer: Any, max_tokens: int) -> tuple[str, int, bool]:
    """The text cut to at most `max_tokens` tokens, its number of tokens, and whether it was cut.

    The sampled reply obeys the limit already, but its text may tokenize into more tokens, and a baseline has another tokenizer.
    """
    ids = tokenizer.encode(text, add_special_tokens=False)
    if len(ids) <= max_tokens:
        return text, len(ids), False
    return tokenizer.decode(ids[:max_tokens]).strip(), max_tokens, True


def document_of(sample: Sample) -> str:
    """The row's document, which is in the row itself or in a file that the row names."""
    file = sample.metadata.get(CONTEXT_FILE)
    return Path(file).read_text(encoding="utf-8") if file else sample.metadata["context"]
