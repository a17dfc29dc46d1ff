"""Search-R1's rollout (arXiv 2503.09516, section 3): one token sequence, in which sampled turns and search results alternate.

    prompt  <think>…</think> <search>query</search>  <information>…</information>  <think>…</think> <answer>…</answer>
    given   sampled and trained                      given                         sampled and trained

A turn ends with the closing tag of a query or an answer. Its tokens stay as they were sampled, the result is appended to them,
and the model goes on from there; nothing is tokenized twice. A turn with neither a query nor an answer gets a message about it,
and counts.
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
from vime.types import Sample, StopReason

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
    talk = model.conversation([{"role": "user", "content": prompt}])
    reason = StopReason.TURN_LIMIT
    about: dict[str, Any] = {"queries": [], "holds_gold": [], "invalid_turns": 0, "cut_results": 0}
    for number in range(max_turns + 1):
        if number and talk.room < 1:
            reason = StopReason.TOKEN_LIMIT
            break
        turn = await talk.reply(max_tokens=method.max_turn_tokens, stop=STOPS)
        action, content = action_of(turn.text)
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
        talk.add(observation)
    (result,) = context.samples(sample, **about)
    result.stop_reason = reason
    return result


def question_of(sample: Sample) -> str:
    """The row's question, which ends with a question mark as in the original."""
    question = sample.question.strip()
    return question if question.endswith("?") else f"{question}?"


def action_of(text: str) -> tuple[str | None, str]:
    """The first action of a turn behind its thinking, `search` or `answer` with the content of the tag; None if it has none."""
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
