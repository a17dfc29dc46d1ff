"""The single-turn baseline: the model sees the problem and the beginning of the repository's files, and replies with a patch."""

import asyncio
import re
from pathlib import Path

from agentic.coding.config import CodingConfig
from agentic.coding.prompts import WORDINGS
from agentic.coding.repository import prepare_repository
from agentic.coding.reward import PATCH, TASK, row_of
from agentic.coding.task import Task
from vime.rollout.context import Context, Sampling
from vime.types import Sample, StopReason

MOST_FILE_CHARACTERS = 20_000
"""Longer files are named, but not shown."""
_BLOCK = re.compile(r"```(?:diff|patch)?\n(.*?)```", re.DOTALL)


async def generate(context: Context, sample: Sample, sampling: Sampling) -> Sample:
    """One reply to the problem and the files; the content of its last block is the patch."""
    method, task = CodingConfig.of(context.config), Task.of_sample(sample)
    prepared = await asyncio.to_thread(prepare_repository, task, cache_folder=context.config.workspace.cache_folder)
    files = await asyncio.to_thread(shown_files, prepared.tree, most_characters=method.single_turn_characters)
    content = WORDINGS[method.prompt_style].single_turn.format(statement=task.problem_statement, files=files)
    turn = await context.models["actor"].chat([{"role": "user", "content": content}], max_tokens=method.single_turn_tokens)
    (answer,) = context.samples(sample, **{PATCH: patch_of(turn.text), TASK: row_of(sample)})
    answer.stop_reason = StopReason.TOKEN_LIMIT if turn.finish_reason == "length" else StopReason.ANSWERED
    return answer


def shown_files(tree: Path, *, most_characters: int) -> str:
    """The texts of a repository that fit, each under its path; all other files by their paths alone."""
    parts, left = list[str](), most_characters
    for path in sorted(path for path in tree.rglob("*") if path.is_file() and ".git" not in path.relative_to(tree).parts):
        name = str(path.relative_to(tree))
        text = path.read_text(errors="replace") if path.stat().st_size <= min(left, MOST_FILE_CHARACTERS) else ""
        part = f"{name}:\n```\n{text}\n```" if text else name
        if len(part) > left:
            break
        parts.append(part)
        left -= len(part)
    return "\n\n".join(parts)


def patch_of(reply: str) -> str:
    """The last block of a reply; empty if there is none."""
    blocks = _BLOCK.findall(reply)
    return blocks[-1] if blocks else ""
