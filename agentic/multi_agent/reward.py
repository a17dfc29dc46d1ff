"""The rewards of slime's example: 1 for each right solution, for the selector if its choice is right, and all of them scaled.

Everybody's reward is multiplied by one number if the chosen solution is right and by another if not, so what each role earns
depends on how the rollout ends.
"""

from collections import Counter
from statistics import fmean

from agentic.multi_agent.config import AnswerKind, MultiAgentConfig, Role
from agentic.multi_agent.generate import END_OF_THINKING
from vime.grading.boxed import last_boxed, strip_string
from vime.grading.maths import Equality, equal
from vime.rollout.context import Context
from vime.types import Reward, Sample


async def reward(context: Context, samples: list[Sample]) -> Reward:
    """A reward for each sample, whose mean over the trained ones is the rollout's.

    The metric `strict` says whether the chosen solution is right; the others are about the solvers and rewriters.
    """
    method, roles = MultiAgentConfig.of(context.config), [Role(sample.metadata["role"]) for sample in samples]
    answers = [answer_of(sample.response, thinking=method.thinking) for sample in samples]
    right = [await is_right(answer, samples[0].label, kind=method.answer_kind) for answer in answers]
    chosen = samples[-1].metadata["chosen"]
    is_solved = chosen is not None and right[chosen]
    weight = method.solved_weight if is_solved else method.unsolved_weight
    earned = [weight * (is_solved if role is Role.selector else is_one) for role, is_one in zip(roles, right)]
    trained = [value for value, sample in zip(earned, samples) if not sample.remove_sample]
    metrics = {"strict": float(is_solved), **_by_role(roles, answers, right)}
    return Reward(score=fmean(trained or [0.0]), metrics=metrics, samples=earned)


def answer_of(response: str, *, thinking: bool) -> str | None:
    """The last box of a reply, behind the last end of its thinking if it must have one."""
    _, ended, solution = response.rpartition(END_OF_THINKING)
    return last_boxed(solution) if ended or not thinking else None


async def is_right(answer: str | None, references: list[str], *, kind: AnswerKind) -> bool:
    """Whether an answer is one of the references."""
    if answer is None:
        return False
    if kind is AnswerKind.text:
        return strip_string(answer) in map(strip_string, references)
    return await equal(answer, references) is Equality.equal


def _by_role(roles: list[Role], answers: list[str | None], right: list[bool]) -> dict[str, float]:
    """Accuracy of the first solver, of all solvers and rewriters, of the solvers' most frequent answer, and of the best reply."""
    solved = [(answer, is_one) for role, answer, is_one in zip(roles, answers, right) if role is Role.solver]
    rewritten = [is_one for role, is_one in zip(roles, right) if role is Role.rewriter]
    votes = Counter(strip_string(answer) for answer, _ in solved if answer is not None)
    most = votes.most_common(1)[0][0] if votes else None
    verdicts = {strip_string(answer): is_one for answer, is_one in solved if answer is not None}
    metrics = {
        "first_solver": float(solved[0][1]),
        "solvers": fmean(is_one for _, is_one in solved),
        "majority": float(most is not None and verdicts[most]),
        "any_solver": float(any(is_one for _, is_one in solved)),
    }
    return metrics | ({"rewriters": fmean(rewritten)} if rewritten else {})
