"""ReTool's rollout (arXiv 2504.11536, section 2.3): one response that goes on behind the output of each program in it.

The response is one sequence of tokens. What the model samples stays as it was sampled; behind a complete `<code>` block the
output of the program is added, as untrained tokens, and the model continues. All programs share one interpreter.
"""

from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

from agentic.retool import prompts
from agentic.retool.config import ReToolConfig
from vime.agent.interpreter import RAISED, SOURCE, Interpreter, text_of
from vime.config import PromptStyle
from vime.rollout.context import Context, Sampling
from vime.types import Sample, StopReason, Turn

END_OF_CODE = "</code>"


async def generate(context: Context, sample: Sample, sampling: Sampling) -> Sample:
    """One sample: the whole response, without its programs' output in the loss."""
    method, model = ReToolConfig.of(context.config), context.models["actor"]
    if not method.interpreter:
        return await single_turn(context, sample, sampling)
    prompt = _prompt(method, sample, prompts.CODE)
    talk = model.conversation(prompt)
    end = min(talk.num_tokens + method.max_response_tokens, model.max_model_len)
    calls: Counter[str] = Counter()
    async with AsyncExitStack() as stack:
        interpreter = None
        while True:
            turn = await talk.reply(max_tokens=end - talk.num_tokens, stop=(END_OF_CODE,))
            stop_reason = _stop_reason(turn, num_calls=calls.total(), method=method)
            if stop_reason is not None:
                break
            if interpreter is None:
                box = await stack.enter_async_context(context.workspace(await context.prepared(SOURCE)))
                interpreter = Interpreter(box, seconds=method.call_seconds, output_bytes=8 * method.output_characters)
            result = await interpreter.run(program_of(turn.text))
            calls["raised" if result.exit_code == RAISED else "ended" if result.exit_code else "finished"] += 1
            output = text_of(result, seconds=method.call_seconds, most_characters=method.output_characters)
            talk.add(prompts.INTERPRETED.format(output=output))
            if talk.num_tokens >= end:
                stop_reason = StopReason.TOKEN_LIMIT
                break
    (answer,) = context.samples(sample, calls=dict(calls))
    answer.stop_reason = stop_reason
    return answer


async def single_turn(context: Context, sample: Sample, sampling: Sampling) -> Sample:
    """One reply in words: the single-turn baseline, and the method without its interpreter."""
    method, model = ReToolConfig.of(context.config), context.models["actor"]
    turn = await model.chat(_prompt(method, sample, prompts.PLAIN), max_tokens=method.max_response_tokens)
    (answer,) = context.samples(sample, calls={})
    answer.stop_reason = StopReason.TOKEN_LIMIT if turn.finish_reason == "length" else StopReason.ANSWERED
    return answer


def program_of(text: str) -> str:
    """The program at the end of a text that was sampled up to `</code>`: its last block, without the marks around it."""
    before = text.rpartition(END_OF_CODE)[0]
    return before.split("<code>")[-1].split("```python")[-1].replace("```", "").strip()


def _prompt(method: ReToolConfig, sample: Sample, wording: str) -> list[dict[str, Any]]:
    wording = wording if method.prompt_style is PromptStyle.full else prompts.TINY
    return [{"role": "user", "content": wording.format(problem=sample.question)}]


def _stop_reason(turn: Turn, *, num_calls: int, method: ReToolConfig) -> StopReason | None:
    """The reason why the response ends with this turn; None if the turn ends with a program that is to be run."""
    if END_OF_CODE not in turn.text:
        return StopReason.TOKEN_LIMIT if turn.finish_reason == "length" else StopReason.ANSWERED
    return StopReason.TURN_LIMIT if num_calls >= method.max_calls else None
