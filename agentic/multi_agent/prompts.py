"""The prompts of the three roles, each the only user message of a conversation.

The parts and their order are those of slime's example, the words are ours: the problem for a solver; the task, the problem and
all solutions, numbered from 1, for rewriters and the selector, whose last line names a solution (`Judgment: 2`). `FULL` is for
models that read instructions; in `TINY`, for the model of the laptop task, the problem comes last.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from vime.config import PromptStyle


@dataclass(frozen=True, kw_only=True, slots=True)
class Wording:
    """The texts of one style, with the fields {problem}, {solutions} and {number}, how many solutions there are."""

    solver: str
    """The problem."""
    rewriter: str
    """The task of writing a better solution after reading all."""
    selector: str
    """The task of naming the best solution."""
    solution: str
    """One solution in the list, with the fields {index} and {solution}."""

    def prompt(self, role: str, problem: str, solutions: Sequence[str]) -> str:
        """The prompt of a role (`solver`, `rewriter` or `selector`), with the solutions that it reads."""
        listed = [self.solution.format(index=index, solution=solution) for index, solution in enumerate(solutions, start=1)]
        wording = {"solver": self.solver, "rewriter": self.rewriter, "selector": self.selector}[role]
        return wording.format(problem=problem, solutions="\n".join(listed), number=len(solutions))


FULL = Wording(
    solver="{problem}\n\nReason step by step, and put the final answer into \\boxed{{}}.",
    rewriter="""\
### Task: write a solution with the help of earlier ones ###
You have worked on the problem below before. You are given two things:
1.  The problem.
2.  Your {number} earlier solutions, which differ and may all be wrong.

Use what is right in these {number} solutions to write one new, complete and correct solution of the problem, with the final \
answer in \\boxed{{}}.
---

### Problem

{problem}

---

### Earlier solutions
{solutions}
""",
    selector="""\
Below are a difficult problem of mathematics and {number} solutions of it.
Find out which of them is the most reliable.

You are given two things:
1.  The problem.
2.  The {number} candidate solutions.

How to proceed:
1. First look
- Put solutions with the same final answer together
- Where answers contradict each other, say why
- Strike out solutions with plain errors

2. Close reading of those that are left
- Is each step right and precise?
- Does each step follow from the one before?
- Is anything missing?
- Are special cases treated?
- Where a solution finds an error of its own, is its correction right?

3. Comparison
- Which is shorter, which is clearer, which is more general?

Write down:
1. A short account of the contradicting answers
2. Your assessment of the solutions that are left
3. Why you struck out the others
4. Why the chosen one is the best

The very last line must be:
Judgment: IDX
with IDX the number, from 1 to {number}, of the solution that you choose

### Problem

{problem}

---

### Candidate solutions
{solutions}
""",
    solution="#### Solution {index}\n{solution}\n\n---",
)
TINY = Wording(
    solver="{problem} Solve.",
    rewriter="{solutions}\n{problem} Rewrite.",
    selector="{solutions}\n{problem} Select.",
    solution="{solution}:{index}",
)
WORDINGS = {PromptStyle.full: FULL, PromptStyle.tiny: TINY}
