"""The prompts of MemAgent (arXiv 2507.02259): one per section, one to answer from memory, and the single-turn baseline.

Each is the content of the only user message of a fresh conversation. MEMORY_PROMPT has the fields {problem}, {memory}
and {chunk}; FINAL_PROMPT has {problem} and {memory}; SINGLE_TURN_PROMPT has {problem} and {chunk}, the whole document. FINAL and
SINGLE_TURN hold the last two by the form of the answer.
"""

from enum import Enum


class AnswerForm(Enum):
    """The form of an answer: in a box, or as the authors' evaluation code asks, in a sentence with fixed words."""

    boxed = "boxed"
    sentence = "sentence"


ANSWER_WORDS = "the answer is"
NO_MEMORY = "No previous memory"

MEMORY_PROMPT = """\
You are given a problem, a section of an article that may help to answer it, and your memory of earlier sections. \
Read the section and update the memory: add new helpful facts and keep every relevant detail it already holds.

<problem>
{problem}
</problem>

<memory>
{memory}
</memory>

<section>
{chunk}
</section>

Updated memory:"""

FINAL_PROMPT = """\
You are given a problem and your memory of an article. \
Answer the problem from the memory and put the answer in \\boxed{{}}.

<problem>
{problem}
</problem>

<memory>
{memory}
</memory>

Your answer:"""

SINGLE_TURN_PROMPT = """\
You are given a problem and an article. \
Answer the problem from the article and put the answer in \\boxed{{}}.

<problem>
{problem}
</problem>

<article>
{chunk}
</article>

Your answer:"""

_BOX = "put the answer in \\boxed{{}}."
_SENTENCE = f'end with the sentence "Therefore, {ANSWER_WORDS} (the answer)".'
FINAL = {AnswerForm.boxed: FINAL_PROMPT, AnswerForm.sentence: FINAL_PROMPT.replace(_BOX, _SENTENCE)}
SINGLE_TURN = {AnswerForm.boxed: SINGLE_TURN_PROMPT, AnswerForm.sentence: SINGLE_TURN_PROMPT.replace(_BOX, _SENTENCE)}
