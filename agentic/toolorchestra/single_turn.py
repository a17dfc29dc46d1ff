"""The single-turn baseline: the trained model is asked once, without tools or experts."""

from agentic.toolorchestra import prompts
from agentic.toolorchestra.config import ToolOrchestraConfig
from agentic.toolorchestra.episodes import domain_of, is_function_calling
from agentic.toolorchestra.experts import Account
from agentic.toolorchestra.settings import LatencySource
from vime.rollout.context import Context, Sampling
from vime.thinking import after_thinking
from vime.types import Sample, StopReason


async def generate(context: Context, sample: Sample, sampling: Sampling) -> Sample:
    """One reply to the question. Rows with a customer score 0, because their database cannot be changed without tools."""
    model, method = context.models["actor"], ToolOrchestraConfig.of(context.config)
    limits = method.limits
    content = prompts.SETS[method.prompt_style].answer.format(context="", question=sample.question)
    turn = await model.conversation([{"role": "user", "content": content}]).reply(max_tokens=limits.turn_tokens)
    account = Account()
    account.add_turn(turn, method)
    function_calling = is_function_calling(sample)
    answer = prompts.answer_of(turn.text) or after_thinking(turn.text).strip()
    (result,) = context.samples(
        sample,
        question=sample.question,
        domain=domain_of(sample),
        category="func_call" if function_calling else "qa",
        final_output=answer,
        episode_reward=0.0,
        preference=sample.metadata.get("preference"),
        dollars=account.dollars,
        seconds=account.seconds(LatencySource.measured),
    )
    result.stop_reason = StopReason.TOKEN_LIMIT if turn.finish_reason == "length" else StopReason.ANSWERED
    return result
