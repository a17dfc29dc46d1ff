"""Prompts of the agent: the instructions of its roles, and the descriptions of its tools.

`full` is for models that read instructions, in the form that public agents for SWE-bench have (arXiv 2405.15793); `tiny` is for
the model of the laptop task, which knows its roles by one word.
"""

from dataclasses import dataclass

from vime.config import PromptStyle


@dataclass(frozen=True, kw_only=True, slots=True)
class Wording:
    """The texts of one style."""

    system: str
    """Instructions of the agent that solves the problem."""
    task: str
    """The agent's first message, with the problem `{statement}`."""
    explorer: str
    """Instructions of a sub-agent that answers a question about the repository."""
    question: str
    """The sub-agent's first message, with the `{question}`."""
    summarize: str
    """Asks for a summary when the context is nearly full."""
    resumed: str
    """The first message after that, with `{task}` and `{summary}`."""
    single_turn: str
    """Prompt of the baseline: the problem `{statement}` and the `{files}`, answered with a patch."""


FULL = Wording(
    system=(
        "You are a software engineer. You solve a problem in the repository in your working folder by changing its code.\n"
        "Work like this: find the code that matters, understand why it fails, reproduce the problem with a short program if "
        "you can, change as little as is needed, check the change, and call submit. Do not change tests: hidden tests will judge "
        "your work. There is no network. Call one tool at a time and wait for its result."
    ),
    task="Solve this problem:\n\n{statement}",
    explorer=(
        "You answer a question about the repository in your working folder. Look at its files with the tools, change nothing, "
        "and reply without a tool call as soon as you know the answer. Give file names, line numbers and the code that matters."
    ),
    question="{question}",
    summarize=(
        "Your context is nearly full and will be replaced by a summary. Write it now, without calling a tool: what you have "
        "found (files, line numbers, code), what you have changed, and what is left to do."
    ),
    resumed="{task}\n\nYou have already worked on it. Your summary:\n\n{summary}",
    single_turn=(
        "Solve this problem in a repository:\n\n{statement}\n\nIts files:\n\n{files}\n\n"
        "Reply with a patch in the format of `git diff`, in a block that begins with ```diff and ends with ```."
    ),
)
TINY = Wording(
    system="Repair",
    task="{statement}",
    explorer="Explore",
    question="{question}",
    summarize="Summarize",
    resumed="{task} Known: {summary}",
    single_turn="Patch: {statement}",
)
WORDINGS = {PromptStyle.full: FULL, PromptStyle.tiny: TINY}

SHELL = "Runs a command line of bash in the repository and shows its output. Each call starts in the repository's folder."
VIEW = "Shows a file with line numbers, or a part of it."
EDIT = (
    "Replaces a text in a file. The old text must occur exactly once, so give enough lines around the change, and indent as the "
    "file does. With an empty old text the file is created."
)
EXPLORE = (
    "Asks a colleague a question about the repository, who looks at it and answers. Use it to find things without filling your "
    "own context."
)
SUBMIT = "Ends your work: the repository as it now stands is judged."
