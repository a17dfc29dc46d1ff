"""AgentFlow's prompts (arXiv 2510.05592, appendix) in our own words; each is the only user message of a new conversation.

A set of prompts has one template per call. Fields: all but SINGLE_TURN have {question}; PLAN, NEXT_STEP and VERIFIER have
{tools} (names) and {toolbox} (a description of each); NEXT_STEP, VERIFIER and FINAL have {analysis} (the plan) and {memory}
(the steps so far); EXECUTOR has {sub_goal}, {tool_name}, {tool} (its description) and {facts} (the planner's context).
"""

from dataclasses import dataclass

from agentic.agentflow.memory import Memory
from agentic.agentflow.tiny import prompts as tiny_prompts
from vime.config import PromptStyle

PLAN = """\
Task: study the question below and work out what it takes to answer it.

Question: {question}

Available tools: {tools}

What each tool does:
{toolbox}

Instructions:
1. Say what the question asks for, and which smaller goals lead there.
2. Name the skills that are needed, and the tools above that offer them.
3. For each skill and each tool, say how it helps with this question.
4. Mention anything else that matters: traps, missing facts, checks of the result.

Be short. Do not answer the question yet."""

NEXT_STEP = """\
Task: choose the next step towards the answer: one sub-goal, and the one tool that reaches it best.

Context:
- Question: {question}
- Analysis of the question: {analysis}
- Available tools: {tools}
- What each tool does:
{toolbox}
- Steps taken so far: {memory}

Instructions:
1. Compare what the question needs with what the steps so far have brought.
2. Decide on the single most useful tool for what is missing.
3. Set a specific sub-goal that this tool can reach in one call.
4. Write down everything the tool needs to know: numbers, names, facts from earlier steps.

Rules:
- Choose exactly one tool, by its exact name.
- The tool sees only what you write here: the context must stand on its own.
- End with the four sections below, in this order, and write nothing after them.

Justification: why this tool and this sub-goal
Context: all facts that the tool needs
Sub-Goal: what the tool shall do
Tool Name: the tool's exact name"""

EXECUTOR = """\
Task: write the command that calls a tool for a sub-goal.

Context:
- Question: {question}
- Sub-goal: {sub_goal}
- Tool: {tool_name}
- What the tool does: {tool}
- Relevant facts: {facts}

Rules:
1. Call `tool.execute()` at least once, and assign what it returns to the variable `execution`.
2. Its only argument is `query`, a string in triple double quotes.
3. The query is plain language that holds every fact the tool needs; it is not code.

Two examples:

Generated Command:
```python
execution = tool.execute(query=\"\"\"Find the year in which the bridge named in the question was opened.\"\"\")
```

Generated Command:
```python
execution = tool.execute(query=\"\"\"Compute the sum of the squares of 3, 5 and 8.\"\"\")
```

Now write the command for the sub-goal above in the same form:"""

VERIFIER = """\
Task: judge whether the steps so far are enough to answer the question, and whether they can be trusted.

Context:
- Question: {question}
- Available tools: {tools}
- What each tool does:
{toolbox}
- Analysis of the question: {analysis}
- Steps taken so far: {memory}

Check four things:
1. Is every part of the question covered?
2. Do results contradict each other or the question?
3. Is a result vague, or open to another reading, so that it has to be verified?
4. Would a tool that was not used yet bring something important?

Explain briefly. If the steps suffice, end with the line
Conclusion: STOP
and if more steps are needed, end with the line
Conclusion: CONTINUE"""

FINAL = """\
Task: answer the question from the steps that were taken.

Context:
- Question: {question}
- Analysis of the question: {analysis}
- Steps taken: {memory}

Go through the results step by step, then give the answer, as short as possible, at the very end in \\boxed{{}}."""

SINGLE_TURN = """\
{question}

Think step by step, then give the answer, as short as possible, at the very end in \\boxed{{}}."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompts:
    """The templates of one style."""

    plan: str
    next_step: str
    executor: str
    verifier: str
    final: str
    single_turn: str


SETS = {
    PromptStyle.full: Prompts(
        plan=PLAN, next_step=NEXT_STEP, executor=EXECUTOR, verifier=VERIFIER, final=FINAL, single_turn=SINGLE_TURN
    ),
    PromptStyle.tiny: Prompts(
        plan=tiny_prompts.PLAN,
        next_step=tiny_prompts.NEXT_STEP,
        executor=tiny_prompts.EXECUTOR,
        verifier=tiny_prompts.VERIFIER,
        final=tiny_prompts.FINAL,
        single_turn=tiny_prompts.SINGLE_TURN,
    ),
}


def memory_text(style: PromptStyle, memory: Memory) -> str:
    """The steps so far as a prompt shows them: every field of each step, or only tool and result for a tiny model."""
    if style is PromptStyle.full:
        return repr(memory.actions())
    return tiny_prompts.steps([(step.tool_name, step.result) for step in memory.steps])
