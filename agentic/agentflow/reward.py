"""AgentFlow's reward: 1 if the final answer is correct, otherwise 0.

The rules for the question's kind decide first; where they cannot, the model `method.roles.judge` decides, if there is one.
"""

from dataclasses import replace

from agentic.agentflow.config import AgentFlowConfig
from vime.grading.answer import has_box
from vime.grading.grade import grade
from vime.grading.judge import Judge
from vime.rollout.context import Context
from vime.types import Reward, Sample

DEFAULT_GRADER = "maths"
"""Grader of rows that name none (DAPO-Math-17k)."""


async def reward(context: Context, samples: list[Sample]) -> Reward:
    """Scores the final output of a rollout; the metrics record whether it had a box and whether the judge decided."""
    metadata = samples[-1].metadata
    answer, thinks = metadata["final_output"], metadata.get("thinks", False)
    found = await grade(
        metadata.get("grader", DEFAULT_GRADER),
        answer,
        samples[-1].label,
        question=metadata["question"],
        judge=judge_of(context),
        thinks=thinks,
        digits=metadata.get("digits"),
        judge_alone=AgentFlowConfig.of(context.config).judging.alone,
    )
    return Reward(
        score=found.score,
        metrics={
            "strict": found.score,
            "boxed": float(has_box(answer, thinks=thinks)),
            "judged": float(found.decided_by == "judge"),
            "undecided": float(found.decided_by in ("nobody", "limit")),
        },
    )


def judge_of(context: Context) -> Judge | None:
    """The judge of this run, or None if there is none."""
    settings = AgentFlowConfig.of(context.config).judge_config()
    if settings is None:
        return None
    return Judge(context, replace(settings, keep_verdicts=not context.config.deterministic))
