"""The rewards of slime's example: 1 for a right solution or choice, all scaled by whether the chosen solution is right."""

from collections import Counter
from statistics import fmean

from agentic.multi_agent.config import MultiAgentConfig, Role
from vime.grading.boxed import last_boxed, strip_string
from vime.grading.maths import Equality, equal
from vime.rollout.context import Context
from vime.thinking import after_thinking
from vime.types import Reward, Sample


async def reward(context: Context, samples: list[Sample]) -> Reward:
    """A reward for each sample, and their mean over the trained ones; `strict` says whether the chosen solution is right."""
    method, roles = MultiAgentConfig.of(context.config), [sample.metadata["role"] for sample in samples]
    answers = [answer_of(sample.response, thinking=context.config.model.thinks) for sample in samples]
    decided = [await verdict_of(answer, samples[0].label, maths=method.maths) for answer in answers]
    right = [verdict is Equality.equal for verdict in decided]
    chosen = samples[-1].metadata["chosen"]
    is_solved = chosen is not None and right[chosen]
    weight = method.solved_weight if is_solved else method.unsolved_weight
    earned = [weight * (is_solved if role == Role.selector else is_one) for role, is_one in zip(roles, right)]
    trained = [value for value, sample in zip(earned, samples) if not sample.remove_sample]
    solvers, rewriters = ([is_one for one, is_one in zip(roles, right) if one == role] for role in (Role.solver, Role.rewriter))
    votes = Counter(strip_string(answer) for role, answer in zip(roles, answers) if role == Role.solver and answer is not None)
    verdicts = {strip_string(answer): is_one for answer, is_one in zip(answers, right) if answer is not None}
    metrics = {"strict": float(is_solved), "first_solver": float(solvers[0]), "solvers": fmean(solvers)}
    metrics |= {"any_solver": float(any(solvers)), "majority": float(bool(votes) and verdicts[votes.most_common(1)[0][0]])}
    metrics |= {"undecided": fmean(verdict in (Equality.undecided, Equality.limit) for verdict in decided)}
    metrics |= {"rewriters": fmean(rewriters)} if rewriters else {}
    return Reward(score=fmean(trained or [0.0]), metrics=metrics, samples=earned)


def answer_of(response: str, *, thinking: bool) -> str | None:
    """The last box of a reply, behind its thinking, which `thinking` says that it must have."""
    return last_boxed(after_thinking(response, thinks=thinking))


async def verdict_of(answer: str | None, references: list[str], *, maths: bool) -> Equality:
    """The verdict about an answer: one of the references, letter by letter or by mathematics."""
    if answer is None or not maths:
        same = answer is not None and strip_string(answer) in map(strip_string, references)
        return Equality.equal if same else Equality.different
    return await equal(answer, references)
