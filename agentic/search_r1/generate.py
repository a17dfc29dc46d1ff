"""Search-R1's rollout (arXiv 2503.09516, section 3): one token sequence, in which sampled turns and search results alternate.

    prompt  <think>…</think> <search>query</search>  <information>…</information>  <think>…</think> <answer>…</answer>
    given   sampled and trained                      given                         sampled and trained

A turn ends with the closing tag of a query or an answer. Its tokens stay as they were sampled, the result is appended to them,
and the model goes on from there; nothing is tokenized twice. A turn with neither a query nor an answer is told so, and counts.
"""

import re
from typing import Any

from agentic.search_r1.config import SearchR1Config
from agentic.search_r1.prompts import INFORMATION, PASSAGE, WORDINGS
from vime.errors import ServerError
from vime.grading.qa import gold_in_prediction
from vime.rollout.context import Context, Sampling
from vime.rollout.tool import ToolOutcome, run_tool
from vime.thinking import after_thinking
from vime.trajectory.plain_text import control_tokens
from vime.trajectory.sequence import TokenSequence
from vime.types import Sample, StopReason, Turn

STOPS = ("</search>", "</answer>")
ACTION = re.compile(r"<(search|answer)>(.*?)</\1>", re.DOTALL)


async def generate(context: Context, sample: Sample, sampling: Sampling) -> Sample:
    """One rollout with at most `method.max_turns` searches."""
    return await play(context, sample, max_turns=SearchR1Config.of(context.config).max_turns)


async def play(context: Context, sample: Sample, *, max_turns: int) -> Sample:
    """Alternates turns and search results until there is an answer; after `max_turns` one more turn is left for it."""
    method, model = SearchR1Config.of(context.config), context.models["actor"]
    wording, encode = WORDINGS[method.prompt_style], control_tokens(model.tokenizer).encode_plain
    prompt = (wording.search if max_turns else wording.direct).format(question=question_of(sample))
    tokens = TokenSequence.begin(model.render([{"role": "user", "content": prompt}]))
    reason, text = StopReason.TURN_LIMIT, ""
    about: dict[str, Any] = {"queries": [], "holds_gold": [], "invalid_turns": 0, "cut_results": 0}
    for number in range(max_turns + 1):
        room = model.max_model_len - len(tokens.ids)
        if number and room < 1:
            reason = StopReason.TOKEN_LIMIT
            break
        turn = await model.complete(tokens.ids, max_tokens=max(1, min(method.max_turn_tokens, room)), stop=STOPS)
        tokens.add_turn(turn)
        said = text_of(turn, model.tokenizer)
        text += said
        action, content = action_of(said)
        about["invalid_turns"] += action is None
        if action == "answer" or number == max_turns:
            reason = StopReason.ANSWERED if action == "answer" else reason
            break
        observation = wording.invalid
        if action == "search":
            results = await search(context, content)
            if len(ids := encode(results)) > method.max_information_tokens:
                results = model.tokenizer.decode(ids[: method.max_information_tokens])
                about["cut_results"] += 1
            about["queries"].append(content)
            about["holds_gold"].append(gold_in_prediction(results, sample.label))
            observation = INFORMATION.format(results=results)
        tokens.add_environment(encode(observation))
        text += observation
    result = tokens.sample(sample, text, **about)
    result.stop_reason = reason
    return result


def question_of(sample: Sample) -> str:
    """The row's question, which ends with a question mark as in the original."""
    question = sample.question.strip()
    return question if question.endswith("?") else f"{question}?"


def text_of(turn: Turn, tokenizer: Any) -> str:
    """What a turn says with its control tokens (`<think>` is one in some vocabularies), without the one that ends a reply."""
    ids = turn.output_ids
    return tokenizer.decode(ids[:-1] if ids and ids[-1] == tokenizer.eos_token_id else ids, skip_special_tokens=False)


def action_of(text: str) -> tuple[str | None, str]:
    """What a turn does first behind its thinking, `search` or `answer` with the content of the tag; None if it does neither."""
    found = ACTION.search(after_thinking(text))
    return (found[1], found[2].strip()) if found else (None, "")


async def search(context: Context, query: str) -> str:
    """The passages of a query, one per line; "" for a query that the service refuses, such as an empty one.

    Raises ServerError if the service is lost: the rollout is then run again, because this is not the agent's fault.
    """
    assert context.retriever is not None, "checked by problems()"
    result = await run_tool(context, "search", context.retriever.search, query)
    if result.outcome not in (ToolOutcome.ANSWERED, ToolOutcome.REFUSED):
        raise ServerError(result.error)
    lines = [PASSAGE.format(number=n, title=one.title, text=one.text) for n, one in enumerate(result.output or [], start=1)]
    return "\n".join(lines)
