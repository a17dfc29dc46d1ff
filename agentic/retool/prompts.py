"""The prompts of ReTool (arXiv 2504.11536), each the only user message of a conversation, with the field {problem}.

CODE offers the interpreter, PLAIN is the same without it. A tiny model is given the problem alone.
"""

CODE = """\
Solve the problem below step by step. You may write Python programs as part of your reasoning: put each between <code> and \
</code>, as a block that begins with ```python and ends with ```. It is run as soon as it is complete, and what it prints is \
shown to you between <interpreter> and </interpreter>. What a program has defined is there for the next one.
End with the answer in this form:
<answer>
\\boxed{{the answer}}
</answer>

Problem: {problem}"""

PLAIN = """\
Solve the problem below step by step. End with the answer in this form:
<answer>
\\boxed{{the answer}}
</answer>

Problem: {problem}"""

TINY = "{problem}"

INTERPRETED = "\n<interpreter>\n{output}\n</interpreter>\n\n"
"""The text after a program in the model's context."""
