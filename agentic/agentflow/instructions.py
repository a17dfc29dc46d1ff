"""Words of data sets around a question about the form of its answer; a question is the same item with and without them."""

ANSWER_TAGS = (
    "When ready, output the final answer enclosed in <answer> and </answer> tags. "
    "Do not generate any content after the </answer> tag."
)
"""Instructions in the files with which the authors of AgentFlow evaluate."""
DAPO_BEFORE = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: $Answer "
    "(without quotes) where $Answer is the answer to the problem."
)
"""Text before each problem of DAPO-Math-17k."""
DAPO_AFTER = 'Remember to put your answer on its own line after "Answer:".'
"""Text after each problem of DAPO-Math-17k."""
INSTRUCTIONS = (ANSWER_TAGS, DAPO_BEFORE, DAPO_AFTER)


def without_instructions(question: str) -> str:
    """The question alone. Example: `without_instructions(f"{DAPO_BEFORE} 2 + 2? {DAPO_AFTER}")` is "2 + 2?"."""
    for instruction in INSTRUCTIONS:
        question = question.replace(instruction, "")
    return question.strip()
