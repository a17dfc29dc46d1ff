"""The single-turn baseline: the trained model is asked once, without tools."""

from agentic.agentflow.config import AgentFlowConfig
from agentic.agentflow.generate import grading_metadata, thinks
from agentic.agentflow.prompts import SETS
from agentic.agentflow.roles import ask
from vime.rollout.context import Context, Sampling
from vime.types import Sample, StopReason


async def generate(context: Context, sample: Sample, sampling: Sampling) -> Sample:
    """One reply to the question, with the token limit of a planner turn."""
    method = AgentFlowConfig.of(context.config)
    question = method.question_of(sample)
    content = SETS[method.prompt_style].single_turn.format(question=question)
    turn = await ask(context.models[method.roles.planner], content, max_tokens=method.max_planner_tokens)
    (answer,) = context.samples(sample, final_output=turn.text, **grading_metadata(sample, question))
    answer.metadata["thinks"] = thinks(context, method.roles.planner)
    answer.stop_reason = StopReason.TOKEN_LIMIT if turn.finish_reason == "length" else StopReason.ANSWERED
    return answer
