"""AgentFlow's reward: 1 if the final answer is right, by the rules of its kind of question, else 0.

Where rules cannot decide, the judge of `method.roles.judge` does, if there is one.
"""

from dataclasses import replace

from agentic.agentflow.config import AgentFlowConfig
from vime.grading.answer import has_box
from vime.grading.grade import grade
from vime.grading.judge import Judge
from vime.rollout.context import Context
from vime.types import Reward, Sample

DEFAULT_GRADER = "maths"
"""Of rows that name none (DAPO-Math-17k)."""


async def reward(context: Context, samples: list[Sample]) -> Reward:
    """Scores the final output of a rollout; metrics say whether it had a box, and who decided."""
    metadata = samples[-1].metadata
    answer = metadata["final_output"]
    found = await grade(
        metadata.get("grader", DEFAULT_GRADER),
        answer,
        samples[-1].label,
        question=metadata["question"],
        judge=judge_of(context),
    )
    return Reward(
        score=found.score,
        metrics={
            "strict": found.score,
            "boxed": float(has_box(answer)),
            "judged": float(found.decided_by == "judge"),
            "undecided": float(found.decided_by in ("nobody", "limit")),
        },
    )


def judge_of(context: Context) -> Judge | None:
    """The judge, if the role map names one."""
    settings = AgentFlowConfig.of(context.config).judge_config()
    if settings is None:
        return None
    return Judge(context, replace(settings, keep_verdicts=not context.config.deterministic))
