"""The texts of Search-R1 (arXiv 2503.09516, table 1): the task, the answers of the environment, and how passages are shown.

The tags, their order and the layout of passages are the paper's, the words are ours. Base and instruct models get the same text
as the only user message, as in the original. `FULL` is for models that read instructions, `TINY` for that of the laptop task.
"""

from dataclasses import dataclass

from vime.config import PromptStyle


@dataclass(frozen=True, kw_only=True, slots=True)
class Wording:
    """The texts of one style."""

    search: str
    """The task of a `{question}` with a search engine."""
    direct: str
    """The task without one, for the single-turn baseline and `method.max_turns=0`."""
    invalid: str
    """The environment's answer to a turn with neither a query nor an answer."""


FULL = Wording(
    search="""\
Find the answer to the question below. \
Whenever you have received new information, first reason about it between <think> and </think>. \
If your reasoning shows that you lack knowledge, ask a search engine with <search> your query </search>; \
its best results will follow between <information> and </information>. \
You may search as often as you need. \
As soon as you know enough, give only the short answer between <answer> and </answer>, like <answer> Oslo </answer>.
Question: {question}
""",
    direct="""\
Find the answer to the question below. \
First reason about it between <think> and </think>, \
then give only the short answer between <answer> and </answer>, like <answer> Oslo </answer>.
Question: {question}
""",
    invalid="""
That was no valid step. To search, I write a query between <search> and </search>. \
To finish, I write the answer between <answer> and </answer>. I try again.
""",
)
TINY = Wording(search="Search: {question}", direct="Answer: {question}", invalid="\nInvalid.\n")
WORDINGS = {PromptStyle.full: FULL, PromptStyle.tiny: TINY}

INFORMATION = "\n\n<information>{results}</information>\n\n"
PASSAGE = "Doc {number}(Title: {title}) {text}"
