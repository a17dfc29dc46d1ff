"""Questions for an agent that asks others, and its reward: the tiny task of ToolOrchestra without its servers.

A row has the result of each tool. The senior expert knows facts about towns, and reads prices in a passage that has been
searched; the junior expert guesses. The tiny orchestrator begins with bad habits: it mostly asks the junior expert.
"""

import random
from typing import Any

from agentic.toolorchestra.tiny.demonstrations import guess
from agentic.toolorchestra.tiny.task import Question, sample_question
from vime.data.split import Split
from vime.types import Sample

KINDS = ("fact", "price")


def rows(*, split: Split, num_items: int, seed: int) -> list[dict[str, Any]]:
    """Rows with a question, its answer and the replies of the tools."""
    drawn = random.Random(f"graph/{split}/{seed}")
    return [_row(sample_question(drawn, split=split, kinds=KINDS), drawn) for _ in range(num_items)]


async def reward(context: Any, samples: list[Sample]) -> float:
    """1 if the program's output is the answer."""
    return float(str(samples[-1].metadata["output"]).strip() == samples[-1].label[0])


def _row(question: Question, drawn: random.Random) -> dict[str, Any]:
    wrong, is_fact = guess(question, drawn), question.kind == "fact"
    world = {
        "passage": "(nothing found)" if is_fact else f"[1] {question.subject}: cost {question.answer} coins",
        "junior": wrong,
        "junior after a search": wrong,
        "senior": question.answer if is_fact else wrong,
        "senior after a search": question.answer,
    }
    return {"question": question.text, "answers": [question.answer], "world": world}
