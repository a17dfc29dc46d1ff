"""The prompts of MemAgent (arXiv 2507.02259): one per section, one to answer from memory, and the single-turn baseline.

Each is the content of the only user message of a fresh conversation. MEMORY_PROMPT has the fields {problem}, {memory}
and {chunk}; FINAL_PROMPT has {problem} and {memory}; SINGLE_TURN_PROMPT has {problem} and {chunk}, the whole document.
"""

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
